import { readFileSync } from 'node:fs';

/** The PgBouncer whose behaviour this is. */
export const PGBOUNCER_VERSION = '1.25.2';

const manifest: unknown = JSON.parse(
  readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
);

/** Version of this package. */
export const PGFLEET_VERSION =
  typeof manifest === 'object' && manifest !== null && 'version' in manifest
    ? String(manifest.version)
    : 'unknown';

/**
 * `PgBouncer 1.25.2 (pgfleet 0.1.0)`, for `-V`, `SHOW VERSION` and the log: begins like PgBouncer's,
 * so that version checks pass.
 */
export const PRODUCT = `PgBouncer ${PGBOUNCER_VERSION} (pgfleet ${PGFLEET_VERSION})`;

/** What it runs on, in the shape of PgBouncer's library list. */
export const RUNTIME =
  `node ${process.versions.node} (epoll), adns: node, ` +
  `tls: OpenSSL ${process.versions.openssl ?? 'none'}`;
