import type { ClientName } from '../config/hba-rules.ts';

/** How a client is to prove its name: what `auth_type` says, or the HBA rule that it matches. */
export type LoginMethod =
  | { readonly kind: 'any' | 'trust' | 'plain' | 'md5' | 'scram-sha-256' | 'reject' }
  /** `map`: pairs of an ident map, null when the name itself must be proved. */
  | { readonly kind: 'peer'; readonly map: readonly IdentPair[] | null }
  | {
      readonly kind: 'cert';
      readonly map: readonly IdentPair[] | null;
      /** What of the certificate is the name that it proves; see `ClientName`. */
      readonly clientname: ClientName;
    }
  /** `options`: the text of `auth_ldap_options`, or what stands behind `ldap` in an HBA line. */
  | { readonly kind: 'ldap'; readonly options: string };

/** One line of an ident map. */
export interface IdentPair {
  readonly systemName: string;
  /** null: every name (`all`). */
  readonly databaseUser: string | null;
}
