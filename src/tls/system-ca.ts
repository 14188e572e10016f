import { existsSync } from 'node:fs';

/** Where operating systems keep the certificates that they trust; PgBouncer is built with one of them. */
const BUNDLES = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/ssl/ca-bundle.pem',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/etc/ssl/cert.pem',
];

/** The system's bundle of trusted certificates; null: there is none. */
export function systemBundle(): string | null {
  return BUNDLES.find((path) => existsSync(path)) ?? null;
}
