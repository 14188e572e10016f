/**
 * What an HBA file and its ident file say, as the launcher reads it and the workers apply it. All of
 * it survives JSON.
 */

import type { IdentMap } from './ident-file.ts';

/** The first word of a line, GSS encryption left out: no connection here is encrypted so. */
export type HbaType = 'local' | 'host' | 'hostssl' | 'hostnossl';

/** Names of databases or users. */
export interface HbaNames {
  readonly all: boolean;
  /** The database that has the user's name. */
  readonly sameUser: boolean;
  /** Physical replication, which no other word means. */
  readonly replication: boolean;
  readonly names: readonly string[];
}

/** IP addresses, 4 or 16 bytes each; no bit of `address` is outside `mask`. */
export interface HbaNetwork {
  readonly address: readonly number[];
  readonly mask: readonly number[];
}

/** How a client proves its name; `map` names an ident map, null: there is none. */
export type HbaMethod =
  | { readonly kind: 'trust' | 'reject' | 'plain' | 'md5' | 'scram-sha-256' }
  | { readonly kind: 'peer'; readonly map: string | null }
  | { readonly kind: 'cert'; readonly map: string | null; readonly clientname: ClientName }
  | { readonly kind: 'ldap'; readonly options: string };

/**
 * What of a certificate is the client's name: PgBouncer looks at its alternative names and common
 * name; `CN` and `DN` are PostgreSQL's common name and distinguished name, to the letter.
 */
export type ClientName = 'any' | 'CN' | 'DN';

export interface HbaRule {
  readonly type: HbaType;
  readonly databases: HbaNames;
  readonly users: HbaNames;
  /** null: every address. */
  readonly network: HbaNetwork | null;
  readonly method: HbaMethod;
}

export interface HbaConfig {
  /** In the order of their lines: the first that matches decides. */
  readonly rules: readonly HbaRule[];
  readonly maps: readonly IdentMap[];
}
