import { Secret } from '../util/secret.ts';
import { MD5_SALT_BYTES, md5Answer, md5Secret } from './md5.ts';
import { AuthCode, decodeMechanisms, passwordMessage } from './messages.ts';
import type { ScramKeys } from './scram.ts';
import type { StoredSecret } from './secret.ts';
import { ServerScram } from './server-scram.ts';
import { failed, type ServerAuthStep, UNANSWERED, WRONG_PASSWORD_TYPE } from './server-step.ts';

export type { ServerAuthStep } from './server-step.ts';

const OK: ServerAuthStep = { kind: 'ok' };

/** A login to PostgreSQL. */
export interface ServerAuthRequest {
  /** Name in the startup packet sent to the server. */
  readonly user: string;
  /** What is stored for that name; null counts as an empty password. */
  readonly secret: StoredSecret | null;
  /** Keys that a client of this very name proved; used with a SCRAM secret that they belong to. */
  readonly clientKeys: ScramKeys | null;
  /** Source of `n` unpredictable bytes. */
  readonly random: (n: number) => Buffer;
  /**
   * Channel-binding data of the connection, the hash of the server's certificate; asked for when it
   * is needed. Null, or left out: there is nothing to bind to.
   */
  readonly endPoint?: () => Buffer | null;
  /** The answer about to be sent shows the password, or its hash, to whoever reads the connection. */
  readonly onExposed?: (method: 'plain' | 'md5') => void;
}

/** One login in progress. */
export interface ServerAuth {
  /**
   * Takes an Authentication message: its code and the bytes behind the code, which may be reused as
   * soon as this returns. Never rejects for what a server sends.
   */
  onRequest(code: number, body: Buffer): ServerAuthStep | Promise<ServerAuthStep>;
}

/** Starts the login to a server: clear text, MD5 or SCRAM (bound if it can be), as it asks for. */
export function startServerAuth(request: ServerAuthRequest): ServerAuth {
  return new ServerLogin(request);
}

class ServerLogin implements ServerAuth {
  readonly #request: ServerAuthRequest;
  /** The code of the server's question; it may ask one only. */
  #asked: number | null = null;
  #scram: ServerScram | null = null;
  #isOver = false;

  constructor(request: ServerAuthRequest) {
    this.#request = request;
  }

  onRequest(code: number, body: Buffer): ServerAuthStep | Promise<ServerAuthStep> {
    if (this.#isOver) return this.#unexpected(code);
    const step = this.#answer(code, body);
    return step instanceof Promise ? step.then((late) => this.#note(late)) : this.#note(step);
  }

  #note(step: ServerAuthStep): ServerAuthStep {
    if (step.kind === 'ok' || step.kind === 'failed') this.#isOver = true;
    return step;
  }

  #answer(code: number, body: Buffer): ServerAuthStep | Promise<ServerAuthStep> {
    switch (code) {
      case AuthCode.ok:
        return this.#scram === null ? OK : this.#scram.onOk();
      case AuthCode.saslContinue:
        return this.#scram?.onContinue(body) ?? this.#unexpected(code);
      case AuthCode.saslFinal:
        return this.#scram?.onFinal(body) ?? this.#unexpected(code);
      case AuthCode.cleartextPassword:
      case AuthCode.md5Password:
      case AuthCode.sasl:
        // A second question could trade a SCRAM proof for the clear-text password.
        if (this.#asked !== null) return this.#unexpected(code);
        this.#asked = code;
        if (code === AuthCode.sasl) return this.#onSasl(body);
        return code === AuthCode.md5Password ? this.#onMd5(body) : this.#onCleartext();
      default:
        return failed(UNANSWERED, `unknown/unsupported auth method: ${code}`);
    }
  }

  /** Stored hashes go out as they are, like PgBouncer's; the server refuses them in its own words. */
  #onCleartext(): ServerAuthStep {
    const { secret, onExposed } = this.#request;
    if (secret !== null) onExposed?.('plain');
    return { kind: 'send', message: passwordMessage(storedText(secret).reveal()) };
  }

  #onMd5(salt: Buffer): ServerAuthStep {
    const { secret, user, onExposed } = this.#request;
    if (secret?.kind === 'scram') {
      return failed(WRONG_PASSWORD_TYPE, 'cannot do MD5 authentication: wrong password type');
    }
    if (salt.length !== MD5_SALT_BYTES) return failed(UNANSWERED, 'protocol error: bad MD5 salt');
    const text = storedText(secret).reveal();
    const stored = secret?.kind === 'md5' ? text : md5Secret(text, user);
    if (secret !== null) onExposed?.('md5');
    return { kind: 'send', message: passwordMessage(md5Answer(stored, salt)) };
  }

  #onSasl(body: Buffer): ServerAuthStep {
    const { secret, clientKeys, random, endPoint } = this.#request;
    const mechanisms = decodeMechanisms(body);
    if (mechanisms === null)
      return failed(UNANSWERED, 'protocol error: bad list of SASL mechanisms');
    const scram = new ServerScram(secret, clientKeys, random, endPoint?.() ?? null);
    const step = scram.begin(mechanisms);
    if (step.kind === 'send') this.#scram = scram;
    return step;
  }

  #unexpected(code: number): ServerAuthStep {
    this.#isOver = true;
    return failed(UNANSWERED, `protocol error: unexpected authentication request ${code}`);
  }
}

const EMPTY = new Secret('');

/** The stored secret as it was written. */
function storedText(secret: StoredSecret | null): Secret {
  switch (secret?.kind) {
    case 'plain':
      return secret.password;
    case 'md5':
      return secret.hash;
    case 'scram':
      return secret.text;
    default:
      return EMPTY;
  }
}
