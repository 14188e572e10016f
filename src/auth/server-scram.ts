import { Secret } from '../util/secret.ts';
import { saslInitialResponse, saslResponse } from './messages.ts';
import {
  areKeysOf,
  authMessage,
  clientProof,
  deriveVerifier,
  isServerSignature,
  type ScramKeys,
} from './scram.ts';
import {
  BOUND_HEADER,
  channelBinding,
  PLAIN_MECHANISM,
  PLUS_MECHANISM,
  parseServerFinal,
  parseServerFirst,
  type ServerFirst,
} from './scram-messages.ts';
import type { StoredSecret } from './secret.ts';
import { failed, type ServerAuthStep, UNANSWERED, WRONG_PASSWORD_TYPE } from './server-step.ts';

/** The connection has nothing to bind to. */
const UNBOUND_HEADER = 'n,,';
/** It has, but the server has not offered to; one that has knows then that somebody is between. */
const UNOFFERED_HEADER = 'y,,';
/** Random bytes in a client nonce, as in PostgreSQL (SCRAM_RAW_NONCE_LEN). */
const NONCE_BYTES = 18;
/** A server that asks for more would keep a thread of ours busy for many seconds per login. */
const MAX_ITERATIONS = 10_000_000;
const EMPTY = new Secret('');

const ScramState = { created: 0, first: 1, deriving: 2, final: 3, verified: 4, closed: 5 } as const;
type ScramState = (typeof ScramState)[keyof typeof ScramState];

/**
 * The client's side of a SCRAM-SHA-256 login at a server (PostgreSQL documentation, "SASL
 * Authentication"). Both sides prove themselves: without the server's signature there is no `ok`.
 * Where both can, the login is bound to the certificate that the server has shown in its TLS handshake.
 *
 *   created --begin--> first --server-first--> deriving ----> final --server-final--> verified
 *   any of them --anything else--> closed
 */
export class ServerScram {
  #state: ScramState = ScramState.created;
  readonly #secret: StoredSecret | null;
  readonly #clientKeys: ScramKeys | null;
  readonly #nonce: string;
  /** Hash of the server's certificate; null: there is nothing to bind to. */
  readonly #endPoint: Buffer | null;
  #gs2Header = UNBOUND_HEADER;
  #signed: Buffer = Buffer.alloc(0);
  #serverKey: Secret<Buffer> | null = null;

  constructor(
    secret: StoredSecret | null,
    clientKeys: ScramKeys | null,
    random: (n: number) => Buffer,
    endPoint: Buffer | null,
  ) {
    this.#secret = secret;
    this.#clientKeys = clientKeys;
    this.#nonce = random(NONCE_BYTES).toString('base64');
    this.#endPoint = endPoint;
  }

  /** AuthenticationSASL: picks the mechanism and sends client-first-message. */
  begin(mechanisms: readonly string[]): ServerAuthStep {
    // An offer to bind a connection that cannot be bound is no reason to give up, though libpq does:
    // a proxy may have put TLS between it and the server.
    const isBound = this.#endPoint !== null && mechanisms.includes(PLUS_MECHANISM);
    if (!isBound && !mechanisms.includes(PLAIN_MECHANISM)) {
      const text = "none of the server's SASL authentication mechanisms are supported";
      return this.#fail(`server login failed: ${text}`, text);
    }
    if (this.#secret?.kind === 'md5') {
      return this.#fail(WRONG_PASSWORD_TYPE, 'cannot do SCRAM authentication: wrong password type');
    }
    if (this.#secret?.kind === 'scram' && this.#provedKeys() === null) {
      return this.#fail(
        WRONG_PASSWORD_TYPE,
        'cannot do SCRAM authentication: password is SCRAM secret but client authentication did not provide SCRAM keys',
      );
    }
    this.#state = ScramState.first;
    if (isBound) this.#gs2Header = BOUND_HEADER;
    else if (this.#endPoint !== null) this.#gs2Header = UNOFFERED_HEADER;
    const first = Buffer.from(this.#gs2Header + this.#bare(), 'latin1');
    const mechanism = isBound ? PLUS_MECHANISM : PLAIN_MECHANISM;
    return { kind: 'send', message: saslInitialResponse(mechanism, first) };
  }

  /** AuthenticationSASLContinue: answers server-first-message with the proof. */
  onContinue(body: Buffer): ServerAuthStep | Promise<ServerAuthStep> {
    if (this.#state !== ScramState.first) return this.#outOfOrder('SASLContinue');
    const first = parseServerFirst(body);
    if ('problem' in first) return this.#fail(UNANSWERED, first.problem);
    if (!first.nonce.startsWith(this.#nonce) || first.nonce.length === this.#nonce.length) {
      return this.#fail(UNANSWERED, 'invalid SCRAM response (nonce mismatch)');
    }
    if (first.iterations > MAX_ITERATIONS) {
      return this.#fail(UNANSWERED, 'malformed SCRAM message (invalid iteration count)');
    }
    const serverFirst = body.toString('latin1');
    const keys = this.#provedKeys();
    if (keys !== null) return this.#prove(keys, first, serverFirst);

    this.#state = ScramState.deriving;
    const password = this.#secret?.kind === 'plain' ? this.#secret.password : EMPTY;
    return deriveVerifier(password, first.salt, first.iterations).then((derived) =>
      this.#state === ScramState.deriving
        ? this.#prove(derived, first, serverFirst)
        : this.#outOfOrder('SASLContinue'),
    );
  }

  /** AuthenticationSASLFinal: checks the server's signature. */
  onFinal(body: Buffer): ServerAuthStep {
    if (this.#state !== ScramState.final) return this.#outOfOrder('SASLFinal');
    const final = parseServerFinal(body);
    if ('problem' in final) return this.#fail(UNANSWERED, final.problem);
    if ('error' in final) {
      const detail = `error received from server in SCRAM exchange: ${final.error}`;
      return this.#fail(UNANSWERED, detail);
    }
    if (!isServerSignature(this.#serverKey!, this.#signed, final.signature)) {
      const text = 'invalid server signature';
      return this.#fail(`server login failed: ${text}`, text);
    }
    this.#state = ScramState.verified;
    return { kind: 'nothing' };
  }

  /** AuthenticationOk: good only from a server that has proved itself. */
  onOk(): ServerAuthStep {
    if (this.#state === ScramState.verified) return { kind: 'ok' };
    const text = 'failed to verify server signature';
    return this.#fail(`server login failed: ${text}`, text);
  }

  /** Keys for pass-through; a password needs none, and keys of an older secret are none. */
  #provedKeys(): ScramKeys | null {
    const keys = this.#clientKeys;
    if (this.#secret?.kind !== 'scram' || keys === null) return null;
    return areKeysOf(keys, this.#secret.verifier) ? keys : null;
  }

  #prove(keys: ScramKeys, first: ServerFirst, serverFirst: string): ServerAuthStep {
    const endPoint = this.#gs2Header === BOUND_HEADER ? this.#endPoint : null;
    const withoutProof = `c=${channelBinding(this.#gs2Header, endPoint)},r=${first.nonce}`;
    this.#signed = authMessage(this.#bare(), serverFirst, withoutProof);
    this.#serverKey = keys.serverKey;
    const proof = clientProof(keys.clientKey, this.#signed).toString('base64');
    this.#state = ScramState.final;
    return { kind: 'send', message: saslResponse(Buffer.from(`${withoutProof},p=${proof}`)) };
  }

  /** client-first-message-bare; the name stays empty, as libpq's, since the startup packet has it. */
  #bare(): string {
    return `n=,r=${this.#nonce}`;
  }

  #outOfOrder(what: string): ServerAuthStep {
    return this.#fail(UNANSWERED, `protocol error: unexpected ${what}`);
  }

  #fail(text: string, detail: string): ServerAuthStep {
    this.#state = ScramState.closed;
    return failed(text, detail);
  }
}
