/** What a login to PostgreSQL does next. */
export type ServerAuthStep =
  /** Send the whole `p` message, wait for the server's next request. */
  | { readonly kind: 'send'; readonly message: Buffer }
  /** The server has let us in. */
  | { readonly kind: 'ok' }
  /** Nothing to send, wait for the next request. */
  | { readonly kind: 'nothing' }
  | {
      readonly kind: 'failed';
      /**
       * PgBouncer's text: one that starts with `server login failed:` also goes to the clients that
       * wait for the server, `failed to answer authreq` only ends the connection.
       */
      readonly text: string;
      /** PgBouncer's ERROR line that explains it in the log; holds no secret. */
      readonly detail: string;
    };

export const UNANSWERED = 'failed to answer authreq';
export const WRONG_PASSWORD_TYPE = 'server login failed: wrong password type';

export function failed(text: string, detail: string): ServerAuthStep {
  return { kind: 'failed', text, detail };
}
