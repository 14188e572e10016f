import { DatabaseError } from 'pg-protocol';
import { Parser } from 'pg-protocol/dist/parser.js';
import type { ServerAuth, ServerAuthStep } from '../auth/server-auth.ts';
import { AuthenticationCode, HEADER_BYTES, ServerMessage } from '../wire/codes.ts';
import { decodeParameterStatus, decodeReport } from '../wire/decode.ts';
import { query, startupMessage } from '../wire/encode.ts';

/**
 * Logging in to PostgreSQL, from the startup packet to the first ReadyForQuery and past
 * `connect_query` (PostgreSQL documentation, "Start-up"). It is told each whole message and answers
 * what to do; the connection does the input and output.
 */

/** What the login needs to know. */
export interface LoginPlan {
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
  #isConnectQueryDue: boolean;
  #isAuthenticated = false;
  /** Parameters as the server reported them, in order; a later report replaces the value. */
  readonly parameters = new Map<string, string>();
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
    return startupMessage([...this.#plan.startup, ...more]);
  }

  /** One whole message, type byte first; the bytes are the login's own. */
  onMessage(bytes: Buffer): LoginStep | Promise<LoginStep> {
    switch (bytes[0]) {
      case ServerMessage.Authentication:
        return this.#onAuthentication(bytes);
      case ServerMessage.BackendKeyData:
        if (bytes.length < 13) return failed('bad cancel key');
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
        return { kind: 'send', message: query(this.#plan.connectQuery!) };
      case ServerMessage.NegotiateProtocolVersion:
      case ServerMessage.NoticeResponse:
        return NOTHING;
      default:
        // Rows and tags of connect_query.
        return this.#isAuthenticated ? NOTHING : failed('unknown pkt from server');
    }
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
    return NOTHING;
  }

  #onError(bytes: Buffer): LoginStep {
    const refusal = this.#readError(bytes);
    const { message } = refusal;
    if (this.#isAuthenticated && this.#plan.connectQuery !== null && !this.#isConnectQueryDue) {
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
