import { randomBytes } from 'node:crypto';
import { InvariantError } from '../errors.ts';
import { isCertified } from './cert.ts';
import { ClientLdap } from './client-ldap.ts';
import { ClientScram } from './client-scram.ts';
import type { AuthStep, ClientAuth, ClientAuthRequest } from './client-step.ts';
import { isMappedTo } from './ident-map.ts';
import type { LoginMethod } from './login-method.ts';
import { isSameText, MD5_SALT_BYTES, md5Answer, md5Secret } from './md5.ts';
import { AuthCode, authRequest, decodePassword, MAX_AUTH_BYTES } from './messages.ts';
import { spendDerivation, verifyPassword } from './scram.ts';
import type { StoredSecret } from './secret.ts';

export type { AuthStep, ClientAuth, ClientAuthRequest } from './client-step.ts';

const ACCEPTED: AuthStep = {
  kind: 'accepted',
  message: null,
  clientKeys: null,
  password: null,
};
const PASSWORD_FAILED: AuthStep = {
  kind: 'refused',
  text: 'password authentication failed',
  detail: null,
};
const EMPTY_PASSWORD: AuthStep = {
  kind: 'refused',
  text: 'empty password returned by client',
  detail: null,
};
const TRUST_FAILED: AuthStep = {
  kind: 'refused',
  text: '"trust" authentication failed',
  detail: null,
};
const CERT_FAILED: AuthStep = {
  kind: 'refused',
  text: 'certificate authentication failed',
  detail: null,
};
const PEER_FAILED: AuthStep = {
  kind: 'refused',
  text: 'unix socket login rejected',
  detail: null,
};
/** A password that nobody has. */
const NOBODYS = randomBytes(16);
const REJECTED: AuthStep = { kind: 'refused', text: 'login rejected', detail: null };

/**
 * Starts the login of one client by `request.method` (PgBouncer's `auth_type`). An unknown user and
 * one with an empty secret go through the same messages as others and fail at the end.
 */
export function startClientAuth(request: ClientAuthRequest): ClientAuth {
  const { method } = request;
  switch (method.kind) {
    case 'any':
      return new Settled(ACCEPTED);
    case 'trust':
      return new Settled(request.secret === null ? TRUST_FAILED : ACCEPTED);
    case 'plain':
      return new ClientPassword(request);
    case 'md5':
      return needsSasl(request) ? new ClientScram(request) : new ClientMd5(request);
    case 'scram-sha-256':
      return new ClientScram(request);
    case 'reject':
      return new Settled(REJECTED);
    case 'ldap':
      return new ClientLdap(request, method.options);
    case 'cert':
      return new Settled(isCertificateRight(request, method) ? ACCEPTED : CERT_FAILED);
    case 'peer':
      return new Settled(isPeerRight(request, method) ? ACCEPTED : PEER_FAILED);
  }
}

/** As in PgBouncer a name that nobody has is not let in by a certificate of that name. */
function isCertificateRight(
  { user, secret, connection }: ClientAuthRequest,
  method: Extract<LoginMethod, { kind: 'cert' }>,
): boolean {
  return secret !== null && isCertified(user, connection.tls, method);
}

function isPeerRight(
  { user, secret, connection }: ClientAuthRequest,
  { map }: Extract<LoginMethod, { kind: 'peer' }>,
): boolean {
  const { isUnix, osUser } = connection;
  return secret !== null && isUnix && isMappedTo(user, map, (name) => name === osUser);
}

/**
 * A SCRAM verifier cannot answer an MD5 request, so PgBouncer offers SASL instead to users that have
 * one. Where all do, an MD5 request would tell that nobody has the name.
 */
function needsSasl({ secret, profile }: ClientAuthRequest): boolean {
  if (secret === null || secret.kind === 'empty') return profile.isAllScram;
  return secret.kind === 'scram';
}

/** A method that asks the client for nothing. */
class Settled implements ClientAuth {
  readonly #outcome: AuthStep;

  constructor(outcome: AuthStep) {
    this.#outcome = outcome;
  }

  begin(): AuthStep {
    return this.#outcome;
  }

  onMessage(): AuthStep {
    return PASSWORD_FAILED;
  }
}

/** A method with one question and one answer that is a PasswordMessage. */
abstract class OnePassword implements ClientAuth {
  #isAsked = false;
  #isAnswered = false;

  begin(): AuthStep {
    if (this.#isAsked) throw new InvariantError('authentication began twice');
    this.#isAsked = true;
    return { kind: 'send', message: this.question() };
  }

  onMessage(body: Buffer): AuthStep | Promise<AuthStep> {
    if (!this.#isAsked) throw new InvariantError('password before authentication began');
    if (this.#isAnswered || body.length > MAX_AUTH_BYTES) return PASSWORD_FAILED;
    this.#isAnswered = true;
    const password = decodePassword(body);
    if (password === null) return PASSWORD_FAILED;
    if (password.length === 0) return EMPTY_PASSWORD;
    const verdict = this.isRight(password);
    return typeof verdict === 'boolean' ? settle(verdict) : verdict.then(settle);
  }

  protected abstract question(): Buffer;
  protected abstract isRight(answer: Buffer): boolean | Promise<boolean>;
}

function settle(isRight: boolean): AuthStep {
  return isRight ? ACCEPTED : PASSWORD_FAILED;
}

class ClientPassword extends OnePassword {
  readonly #request: ClientAuthRequest;

  constructor(request: ClientAuthRequest) {
    super();
    this.#request = request;
  }

  protected question(): Buffer {
    return authRequest(AuthCode.cleartextPassword);
  }

  protected isRight(password: Buffer): boolean | Promise<boolean> {
    const { secret, isGone, profile } = this.#request;
    if (secret?.kind === 'scram') {
      // The caller's read buffer is reused while the derivation runs.
      return verifyPassword(Buffer.from(password), secret.verifier, isGone);
    }
    const isRight = this.#isSame(password, secret);
    if (isRight || profile.scramIterations === null) return isRight;
    // Where a wrong password takes a derivation for some names, it does for all.
    const sent = Buffer.from(password);
    return spendDerivation(profile.scramIterations, isGone, sent).then(() => false);
  }

  #isSame(password: Buffer, secret: StoredSecret | null): boolean {
    if (secret?.kind === 'plain') return isSameText(password, secret.password.reveal());
    if (secret?.kind !== 'md5') return false;
    return isSameText(md5Secret(password, this.#request.user), secret.hash.reveal());
  }
}

class ClientMd5 extends OnePassword {
  readonly #stored: StoredSecret | null;
  readonly #user: string;
  readonly #salt: Buffer;

  constructor(request: ClientAuthRequest) {
    super();
    this.#stored = request.secret;
    this.#user = request.user;
    this.#salt = request.random(MD5_SALT_BYTES);
  }

  protected question(): Buffer {
    return authRequest(AuthCode.md5Password, this.#salt);
  }

  protected isRight(answer: Buffer): boolean {
    const secret = this.#stored;
    if (secret?.kind === 'md5') {
      return isSameText(answer, md5Answer(secret.hash.reveal(), this.#salt));
    }
    // The same steps for a name that nobody has, with a password that nobody can know.
    const password = secret?.kind === 'plain' ? secret.password.reveal() : NOBODYS;
    const stored = md5Secret(password, this.#user);
    return isSameText(answer, md5Answer(stored, this.#salt)) && secret?.kind === 'plain';
  }
}
