/** How a client is to prove its name: what `auth_type` says, or the HBA rule that it matches. */
export type LoginMethod =
  | { readonly kind: 'any' | 'trust' | 'plain' | 'md5' | 'scram-sha-256' | 'reject' }
  /** `map`: pairs of an ident map, null when the name itself must be proved. */
  | { readonly kind: 'cert' | 'peer'; readonly map: readonly IdentPair[] | null }
  /** `options`: the text of `auth_ldap_options`, or what stands behind `ldap` in an HBA line. */
  | { readonly kind: 'ldap'; readonly options: string };

/** One line of an ident map. */
interface IdentPair {
  readonly systemName: string;
  /** null: every name (`all`). */
  readonly databaseUser: string | null;
}
