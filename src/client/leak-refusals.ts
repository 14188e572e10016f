import { LEAK_KINDS, type LeakKind } from '../metrics/session-leaks.ts';
import { ClientMessage } from '../wire/codes.ts';
import { errorResponse, MessageWriter, query } from '../wire/encode.ts';

/**
 * How a statement that would leave something in the session is refused. The server gets one in its
 * place that fails, so that the error comes in its turn in a pipeline, aborts a transaction block and
 * makes the server skip what follows up to Sync, as an error of the statement's own would. The client
 * is told the pooler's text instead of the server's.
 */

const STATEMENTS: Readonly<Record<LeakKind, string>> = {
  prepare: 'PREPARE',
  listen: 'LISTEN',
  advisory_lock: 'a session-level advisory lock',
  temp_table: 'a temporary table without ON COMMIT DROP',
  set: 'SET without LOCAL',
  role: 'SET ROLE',
  hold_cursor: 'a cursor WITH HOLD',
  load: 'LOAD',
};

/** What is said of each kind, by place in `LEAK_KINDS`. */
export const LEAK_TEXTS: readonly string[] = LEAK_KINDS.map(
  (kind) =>
    `${STATEMENTS[kind]} would leave session state on a server that other clients use (session_leak)`,
);

/** What a client is told, with SQLSTATE feature_not_supported, by place in `LEAK_KINDS`. */
export const REFUSALS: readonly Buffer[] = LEAK_TEXTS.map((text) =>
  errorResponse('ERROR', '0A000', text),
);

/** Not SQL, but legible in the server's log. */
const NOT_SQL = 'refused by the pooler: session_leak = reject';

export const FAILING_QUERY: Buffer = query(NOT_SQL);

/** It has a name, so that the unnamed statement stays as it is. */
export const FAILING_PARSE: Buffer = new MessageWriter()
  .begin(ClientMessage.Parse)
  .cstring('PGFLEET_REFUSED')
  .cstring(NOT_SQL)
  .int16(0)
  .end();
