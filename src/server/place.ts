/** Where a socket leads: a Unix socket's path, or address and port. */
export type SocketPlace = { path: string } | { host: string; port: number };

/**
 * What PgBouncer's `host` and `port` mean, in `[databases]` and in `[peers]`: a socket directory when the
 * host begins with `/` or, in Linux's abstract namespace, with `@`, else a TCP address.
 */
export function placeAt(host: string, port: number): SocketPlace {
  const file = `${host}/.s.PGSQL.${port}`;
  if (host.startsWith('@')) return { path: `\0${file.slice(1)}` };
  return host.startsWith('/') ? { path: file } : { host, port };
}
