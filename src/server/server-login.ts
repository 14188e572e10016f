import { DatabaseError } from 'pg-protocol';
import { Parser } from 'pg-protocol/dist/parser.js';
import type { ServerAuth, ServerAuthStep } from '../auth/server-auth.ts';
import { AuthenticationCode, HEADER_BYTES, RequestCode, ServerMessage } from '../wire/codes.ts';
import { decodeParameterStatus, decodeReport, isProtocol3 } from '../wire/decode.ts';
import { query, startupMessage } from '../wire/encode.ts';
import { isAboutVersion, type SpokenVersions } from './spoken-versions.ts';

/**
 * Logging in to PostgreSQL, from the startup packet to the first ReadyForQuery and past
 * `connect_query` (PostgreSQL documentation, "Start-up"). It is told each whole message and answers
 * what to do; the connection does the input and output.
 */

/** BackendKeyData with the shortest and the longest key of protocol 3.2 (4 to 256 bytes of secret). */
const MIN_KEY_MESSAGE_BYTES = HEADER_BYTES + 8;
const MAX_KEY_MESSAGE_BYTES = HEADER_BYTES + 4 + 256;

/** What the login needs to know. */
export interface LoginPlan {
  /** The host, as `versions` knows it. */
  readonly host: string;
  readonly versions: SpokenVersions;
  /** Parameters of the startup packet, in order. */
  readonly startup: readonly (readonly [string, string])[];
  readonly auth: ServerAuth;
  /** Run before the first use; null: none. */
  readonly connectQuery: string | null;
}

/** What comes of one message. */
export type LoginStep =
  | { readonly kind: 'nothing' }
  | { readonly kind: 'send'; readonly message: Buffer }
  | { readonly kind: 'done' }
  /** The version that was asked for is refused; a new connection should ask for an older one. */
  | { readonly kind: 'too_new'; readonly reason: string }
  /** `sqlstate` and `message` are the server's own words when it refused; else null. */
  | { readonly kind: 'failed'; readonly reason: string; readonly refusal: Refusal | null };

/** A server's own words when it refuses a login, or ours when the secrets do not fit. */
export interface Refusal {
  readonly sqlstate: string;
  readonly message: string;
  /** The server's; null when the words are ours. */
  readonly severity: string | null;
}

const NOTHING: LoginStep = { kind: 'nothing' };
const DONE: LoginStep = { kind: 'done' };

export class ServerLogin {
  readonly #plan: LoginPlan;
  readonly #parser = new Parser();
  /** Version that was asked for; 0: nothing was. */
  #asked = 0;
  #isAnswered = false;
  #isConnectQueryDue: boolean;
  #hasSentQuery = false;
  #isAuthenticated = false;
  /** Parameters as the server reported them, in order; a later report replaces the value. */
  readonly parameters = new Map<string, string>();
  /** Names of those that `connect_query` changed. */
  readonly changedByQuery = new Set<string>();
  /** Bytes of BackendKeyData: process id and secret key. Empty until told. */
  key: Buffer = Buffer.alloc(0);
  /** Text of an error that `connect_query` raised; null: none. */
  connectQueryError: string | null = null;

  constructor(plan: LoginPlan) {
    this.#plan = plan;
    this.#isConnectQueryDue = plan.connectQuery !== null && plan.connectQuery !== '';
  }

  /** The StartupMessage, with `more` parameters behind the plan's. */
  begin(more: readonly (readonly [string, string])[] = []): Buffer {
    const { host, versions, startup } = this.#plan;
    this.#asked = versions.toAsk(host);
    return startupMessage(this.#asked, [...startup, ...more]);
  }

  /** The server has closed. True: it has not said a word, and an older version should be tried. */
  onClosed(): boolean {
    if (this.#asked === 0 || this.#isAnswered) return false;
    return this.#plan.versions.onSilence(this.#plan.host, this.#asked);
  }

  /** One whole message, type byte first; the bytes are the login's own. */
  onMessage(bytes: Buffer): LoginStep | Promise<LoginStep> {
    if (!this.#isAnswered) {
      this.#isAnswered = true;
      const refusal = this.#refusedVersion(bytes);
      if (refusal !== null) return { kind: 'too_new', reason: refusal };
    }
    switch (bytes[0]) {
      case ServerMessage.Authentication:
        return this.#onAuthentication(bytes);
      case ServerMessage.BackendKeyData:
        if (bytes.length < MIN_KEY_MESSAGE_BYTES || bytes.length > MAX_KEY_MESSAGE_BYTES) {
          return failed('bad cancel key');
        }
        this.key = bytes.subarray(5);
        return NOTHING;
      case ServerMessage.ErrorResponse:
        return this.#onError(bytes);
      case ServerMessage.ParameterStatus:
        return this.#onParameter(bytes);
      case ServerMessage.ReadyForQuery:
        if (!this.#isAuthenticated) return failed('unknown pkt from server');
        if (!this.#isConnectQueryDue) return DONE;
        this.#isConnectQueryDue = false;
        this.#hasSentQuery = true;
        return { kind: 'send', message: query(this.#plan.connectQuery!) };
      case ServerMessage.NegotiateProtocolVersion:
        return this.#onNegotiation(bytes);
      case ServerMessage.NoticeResponse:
        return NOTHING;
      default:
        // Rows and tags of connect_query.
        return this.#hasSentQuery ? NOTHING : failed('unknown pkt from server');
    }
  }

  /** What the first answer says against the version asked for; null: nothing. */
  #refusedVersion(bytes: Buffer): string | null {
    const { host, versions } = this.#plan;
    if (bytes[0] === ServerMessage.ErrorResponse && this.#asked > RequestCode.protocol3) {
      const { message, sqlstate } = this.#readError(bytes);
      if (isAboutVersion(sqlstate, message)) {
        versions.onRefusal(host);
        return message;
      }
    }
    versions.onAnswer(host, this.#asked);
    return null;
  }

  /**
   * The server speaks an older minor version, which changes nothing but the length of its cancel key.
   * Some say only the minor one, as the protocol's documentation has it, PostgreSQL says both.
   */
  #onNegotiation(bytes: Buffer): LoginStep {
    if (bytes.length < HEADER_BYTES + 8 || this.#isAuthenticated) {
      return failed('unknown pkt from server');
    }
    const said = bytes.readInt32BE(HEADER_BYTES);
    const version = said >>> 16 === 0 ? RequestCode.protocol3 | said : said;
    if (isProtocol3(version) && version <= this.#asked) return NOTHING;
    return failed('server wants a protocol version that was not asked for');
  }

  #onAuthentication(bytes: Buffer): LoginStep | Promise<LoginStep> {
    if (bytes.length < 9 || this.#isAuthenticated) return failed('failed to answer authreq');
    const code = bytes.readInt32BE(5);
    const step = this.#plan.auth.onRequest(code, bytes.subarray(9));
    return step instanceof Promise
      ? step.then((result) => this.#onAuthStep(code, result))
      : this.#onAuthStep(code, step);
  }

  #onAuthStep(code: number, step: ServerAuthStep): LoginStep {
    if (step.kind === 'send') return step;
    if (step.kind === 'failed') {
      // Only what concerns the secrets is told to the clients that wait.
      const isTold = step.text.startsWith('server login failed:');
      return failed(
        step.text,
        isTold ? { sqlstate: '08P01', message: step.text, severity: null } : null,
      );
    }
    if (code === AuthenticationCode.ok) this.#isAuthenticated = true;
    return NOTHING;
  }

  #onParameter(bytes: Buffer): LoginStep {
    const pair = decodeParameterStatus(bytes, HEADER_BYTES, bytes.length);
    if (pair === null) return failed('broken ParameterStatus packet');
    this.parameters.set(pair[0], pair[1]);
    if (this.#hasSentQuery) this.changedByQuery.add(pair[0]);
    return NOTHING;
  }

  #onError(bytes: Buffer): LoginStep {
    const refusal = this.#readError(bytes);
    const { message } = refusal;
    if (this.#hasSentQuery) {
      this.connectQueryError = message;
      return NOTHING;
    }
    return failed(message, refusal);
  }

  #readError(bytes: Buffer): Refusal {
    const refusal = { message: '', sqlstate: '08P01', severity: 'FATAL' };
    // The library's reader looks for the end of the fields without a bound, so it must be there: the
    // NUL of the last field and one more. A message without it is read by our own decoder.
    if (bytes.length < HEADER_BYTES + 2 || bytes.readUInt16BE(bytes.length - 2) !== 0) {
      const fields = decodeReport(bytes, HEADER_BYTES, bytes.length);
      return {
        message: fields.get('M') ?? refusal.message,
        sqlstate: fields.get('C') ?? refusal.sqlstate,
        severity: fields.get('S') ?? refusal.severity,
      };
    }
    this.#parser.parse(bytes, (error) => {
      if (!(error instanceof DatabaseError)) return;
      refusal.message = error.message ?? refusal.message;
      refusal.sqlstate = error.code ?? refusal.sqlstate;
      refusal.severity = error.severity ?? refusal.severity;
    });
    return refusal;
  }
}

function failed(reason: string, refusal: Refusal | null = null): LoginStep {
  return { kind: 'failed', reason, refusal };
}
