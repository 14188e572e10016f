/**
 * What OpenSSL says of a failure, as PgBouncer's log has it: `error:0A0000C7:SSL routines::peer did
 * not return a certificate`. Node's text goes on with names and lines of source files. An error of
 * another kind is its message.
 */
export function opensslText(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const found = /error:([0-9A-F]{8}):([^:]*):[^:]*:([^:\n]+)/.exec(error.message);
  return found === null ? error.message.trimEnd() : `error:${found[1]}:${found[2]}::${found[3]}`;
}
