import { InvariantError } from '../errors.ts';
import { Secret } from '../util/secret.ts';
import type { AuthStep, ClientAuth, ClientAuthRequest } from './client-step.ts';
import { AuthCode, authRequest, decodePassword, MAX_AUTH_BYTES } from './messages.ts';

const WITHOUT_OPTIONS = refused('auth_ldap_options is null');
const BROKEN = refused('password authentication failed');
const EMPTY_PASSWORD = refused('empty password returned by client');
const FAILED = refused('LDAP authentication failed');

/**
 * The `ldap` method: the client sends its password in clear text, and a directory says whether it is
 * right. What is stored for the name does not matter. The password is kept for logins to servers.
 */
export class ClientLdap implements ClientAuth {
  readonly #request: ClientAuthRequest;
  readonly #options: string;
  #isAsked = false;
  #isAnswered = false;

  /** @param options text of LDAP options; empty: there are none */
  constructor(request: ClientAuthRequest, options: string) {
    this.#request = request;
    this.#options = options;
  }

  begin(): AuthStep {
    if (this.#isAsked) throw new InvariantError('authentication began twice');
    this.#isAsked = true;
    if (this.#options === '') return WITHOUT_OPTIONS;
    return { kind: 'send', message: authRequest(AuthCode.cleartextPassword) };
  }

  onMessage(body: Buffer): AuthStep | Promise<AuthStep> {
    if (!this.#isAsked) throw new InvariantError('password before authentication began');
    if (this.#isAnswered || body.length > MAX_AUTH_BYTES) return BROKEN;
    this.#isAnswered = true;
    const bytes = decodePassword(body);
    if (bytes === null) return BROKEN;
    // Sent on, an empty one would be a bind without proof, which succeeds (RFC 4513, section 5.1.2).
    if (bytes.length === 0) return EMPTY_PASSWORD;
    const text = decodeUtf8(bytes);
    // LDAP has passwords in UTF-8 (RFC 4513, section 5.1.3); read loosely, different ones are the same.
    return text === null ? FAILED : this.#check(new Secret(text));
  }

  async #check(password: Secret): Promise<AuthStep> {
    const { user, checkLdap } = this.#request;
    const isRight = await checkLdap(this.#options, user, password);
    return isRight ? { kind: 'accepted', message: null, clientKeys: null, password } : FAILED;
  }
}

function decodeUtf8(bytes: Buffer): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

function refused(text: string): AuthStep {
  return { kind: 'refused', text, detail: null };
}
