import { InvariantError } from '../errors.ts';
import { Secret } from '../util/secret.ts';
import type { AuthStep, ClientAuth, ClientAuthRequest } from './client-step.ts';
import {
  AuthCode,
  authRequest,
  decodeSaslInitial,
  MAX_AUTH_BYTES,
  saslRequest,
} from './messages.ts';
import {
  authMessage,
  deriveVerifier,
  isDerived,
  recoverClientKey,
  type ScramVerifier,
  serverSignature,
  spendDerivation,
  stableSalt,
} from './scram.ts';
import {
  type ClientFirst,
  PLAIN_MECHANISM,
  PLUS_MECHANISM,
  parseClientFinal,
  parseClientFirst,
} from './scram-messages.ts';
import type { StoredSecret } from './secret.ts';

/** Random bytes in a server nonce, as in PostgreSQL (SCRAM_RAW_NONCE_LEN). */
const NONCE_BYTES = 18;
const KEY_BYTES = 32;

const ScramState = { created: 0, initial: 1, final: 2, closed: 3 } as const;
type ScramState = (typeof ScramState)[keyof typeof ScramState];

/**
 * The pooler's side of a SCRAM-SHA-256 login (PostgreSQL documentation, "SASL Authentication"). Over
 * TLS the login with channel binding is offered first, where the certificate has a hash to bind to.
 *
 *   created --begin--> initial --SASLInitialResponse--> final --SASLResponse--> closed
 *
 * A user that is unknown, or whose secret cannot serve SCRAM, is *doomed*: the exchange runs to its
 * end with a made-up verifier and fails there, so that it looks like a wrong password.
 */
export class ClientScram implements ClientAuth {
  #state: ScramState = ScramState.created;
  readonly #random: (n: number) => Buffer;
  readonly #secret: StoredSecret | null;
  readonly #salt: Buffer;
  readonly #iterations: number;
  /** Iterations of a derivation that a refusal costs in any case; null: of none. */
  readonly #refusalIterations: number | null;
  readonly #isGone: () => boolean;
  /** Channel-binding data that a client may be asked for; null: binding is not offered. */
  readonly #endPoint: Buffer | null;
  readonly #mechanisms: readonly string[];
  #isBound = false;
  #first: ClientFirst | null = null;
  #serverFirst = '';
  #nonce = '';

  constructor(request: ClientAuthRequest) {
    const { secret, profile } = request;
    // The setting has no range check, but PBKDF2 has.
    const scramIterations = Math.max(1, request.scramIterations);
    this.#random = request.random;
    this.#isGone = request.isGone;
    this.#refusalIterations = profile.hasPlain ? scramIterations : null;
    this.#secret = secret;
    this.#endPoint = request.connection.tls?.endPoint ?? null;
    this.#mechanisms =
      this.#endPoint === null ? [PLAIN_MECHANISM] : [PLUS_MECHANISM, PLAIN_MECHANISM];
    if (secret?.kind === 'scram') {
      this.#salt = secret.verifier.salt;
      this.#iterations = secret.verifier.iterations;
    } else {
      this.#salt = stableSalt(request.fleetSecret, request.user);
      // Among names whose secrets were all made with another count, the setting's would stand out.
      const isLikeOthers = secret?.kind !== 'plain' && profile.isAllScram;
      this.#iterations = isLikeOthers ? profile.scramIterations! : scramIterations;
    }
  }

  begin(): AuthStep {
    if (this.#state !== ScramState.created) throw new InvariantError('authentication began twice');
    this.#state = ScramState.initial;
    return { kind: 'send', message: saslRequest(this.#mechanisms) };
  }

  onMessage(body: Buffer): AuthStep | Promise<AuthStep> {
    const state = this.#state;
    if (state === ScramState.created) {
      throw new InvariantError('password before authentication began');
    }
    // Whatever ends the exchange does so here; only a good first message goes on.
    this.#state = ScramState.closed;
    if (state === ScramState.closed || body.length > MAX_AUTH_BYTES) return refused(null);
    return state === ScramState.initial ? this.#onInitial(body) : this.#onFinal(body);
  }

  #onInitial(body: Buffer): AuthStep {
    const initial = decodeSaslInitial(body);
    if (initial === null || !this.#mechanisms.includes(initial.mechanism)) {
      return {
        kind: 'refused',
        text: 'client selected an invalid SASL authentication mechanism',
        detail: null,
      };
    }
    // A client may legally leave the first message out and be asked for it; none does, and
    // PgBouncer does not ask.
    if (initial.response === null) return refused(null);
    this.#isBound = initial.mechanism === PLUS_MECHANISM;
    const unbound = this.#endPoint === null ? 'none' : 'offered';
    const first = parseClientFirst(initial.response, this.#isBound ? 'chosen' : unbound);
    if ('problem' in first) return refused(first.problem);

    this.#first = first;
    this.#nonce = first.nonce + this.#random(NONCE_BYTES).toString('base64');
    this.#serverFirst = `r=${this.#nonce},s=${this.#salt.toString('base64')},i=${this.#iterations}`;
    this.#state = ScramState.final;
    const message = Buffer.from(this.#serverFirst, 'latin1');
    return { kind: 'send', message: authRequest(AuthCode.saslContinue, message) };
  }

  #onFinal(body: Buffer): AuthStep | Promise<AuthStep> {
    const first = this.#first!;
    const final = parseClientFinal(body, first.gs2Header, this.#isBound ? this.#endPoint : null);
    if ('problem' in final) return refused(final.problem);
    if (final.nonce !== this.#nonce) {
      return refused('invalid SCRAM response (nonce does not match)');
    }
    const signed = authMessage(first.bare, this.#serverFirst, final.withoutProof);
    const secret = this.#secret;
    if (secret?.kind !== 'plain') {
      return this.#delay(this.#judge(this.#storedVerifier(), signed, final.proof));
    }
    const { password } = secret;
    const isFree = isDerived(password, this.#salt, this.#iterations);
    return deriveVerifier(password, this.#salt, this.#iterations).then((verifier) => {
      const step = this.#judge(verifier, signed, final.proof);
      return isFree ? this.#delay(step) : step;
    });
  }

  /**
   * A refusal that cost no derivation. If others cost one, because a stored password has to be derived
   * at its first use, this one does too: or the time would tell what is stored, or that nothing is.
   */
  #delay(step: AuthStep): AuthStep | Promise<AuthStep> {
    if (step.kind !== 'refused' || this.#refusalIterations === null) return step;
    return spendDerivation(this.#refusalIterations, this.#isGone).then(() => step);
  }

  #judge(verifier: ScramVerifier, signed: Buffer, proof: Buffer): AuthStep {
    const clientKey = recoverClientKey(verifier, signed, proof);
    const secret = this.#secret;
    if (secret?.kind === 'md5') return refused('SCRAM authentication failed: user has MD5 secret');
    if (clientKey === null || secret === null || secret.kind === 'empty') {
      return refused('password authentication failed');
    }
    const signature = serverSignature(verifier.serverKey, signed).toString('base64');
    return {
      kind: 'accepted',
      message: authRequest(AuthCode.saslFinal, Buffer.from(`v=${signature}`)),
      // Keys of a verifier made up here fit no server.
      clientKeys: secret.kind === 'scram' ? { clientKey, serverKey: verifier.serverKey } : null,
      password: null,
    };
  }

  /** The stored verifier, or for a doomed login one that nobody has a password for. */
  #storedVerifier(): ScramVerifier {
    if (this.#secret?.kind === 'scram') return this.#secret.verifier;
    return {
      iterations: this.#iterations,
      salt: this.#salt,
      storedKey: new Secret(this.#random(KEY_BYTES)),
      serverKey: new Secret(this.#random(KEY_BYTES)),
    };
  }
}

function refused(detail: string | null): AuthStep {
  return { kind: 'refused', text: 'SASL authentication failed', detail };
}
