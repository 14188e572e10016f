import { createHash } from 'node:crypto';
import { access, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { cached } from './folders.ts';
import { runProgram } from './programs.ts';

/** Certificates and keys of the tests, PEM files that the servers' account owns. */
export interface Certs {
  /** File `name` of the set. */
  file(name: CertFile): string;
}

/**
 * `ca` signed everything but `other-ca`, and has `ca.crl`, which revokes `revoked`. `server` is for
 * localhost, 127.0.0.1 and ::1; `wrong-name` for db.example only, `named` for localhost only, and
 * `common` has no names but its common name, 127.0.0.1. Clients' certificates carry their
 * name as common name; `stranger` is one of `app`, signed by `other-ca`.
 */
export type CertFile =
  | 'ca.crl'
  | `${'ca' | 'other-ca'}.crt`
  | `${'server' | 'wrong-name' | 'named' | 'common' | 'app' | 'mallory' | 'revoked' | 'stranger'}.${'crt' | 'key'}`;

const LEAVES = [
  { name: 'server', subject: '/CN=localhost', ca: 'ca', alt: 'DNS:localhost,IP:127.0.0.1,IP:::1' },
  { name: 'wrong-name', subject: '/CN=db.example', ca: 'ca', alt: 'DNS:db.example' },
  { name: 'named', subject: '/CN=x', ca: 'ca', alt: 'DNS:localhost' },
  { name: 'common', subject: '/CN=127.0.0.1', ca: 'ca', alt: 'DNS:other.example' },
  { name: 'app', subject: '/O=Example/CN=app', ca: 'ca', alt: null },
  { name: 'mallory', subject: '/O=Example/CN=mallory', ca: 'ca', alt: null },
  { name: 'revoked', subject: '/O=Example/CN=app', ca: 'ca', alt: null },
  { name: 'stranger', subject: '/O=Example/CN=app', ca: 'other-ca', alt: null },
] as const;

/** Part of the set's name, so that one made of other certificates is never used. */
const LEAVES_HASH = createHash('sha1').update(JSON.stringify(LEAVES)).digest('hex').slice(0, 8);

/** The reason to skip a case that needs certificates; null: they can be made. */
export async function missingOpenssl(): Promise<string | null> {
  const found = ['/usr/bin/openssl', '/usr/local/bin/openssl'].map((path) =>
    access(path).then(
      () => true,
      () => false,
    ),
  );
  return (await Promise.all(found)).includes(true) ? null : 'needs Debian package openssl';
}

/** The set of certificates, made once a run by the `openssl` program. */
export async function makeCerts(): Promise<Certs> {
  const folder = await cached(`certs-${LEAVES_HASH}`, fill);
  return { file: (name) => join(folder, name) };
}

async function fill(folder: string): Promise<void> {
  const at = (name: string): string => join(folder, name);
  for (const ca of ['ca', 'other-ca']) {
    await openssl(
      ['req', '-x509', ...newKey(at(`${ca}.key`)), '-out', at(`${ca}.crt`), '-days', '30'],
      ['-subj', `/CN=${ca}`, '-addext', 'keyUsage=critical,keyCertSign,cRLSign'],
    );
  }
  for (const { name, subject, ca, alt } of LEAVES) {
    const request = at(`${name}.csr`);
    const extensions = at(`${name}.ext`);
    await writeFile(
      extensions,
      alt === null ? 'basicConstraints=CA:FALSE\n' : `subjectAltName=${alt}\n`,
    );
    await openssl(['req', ...newKey(at(`${name}.key`)), '-out', request, '-subj', subject]);
    await openssl(
      ['x509', '-req', '-in', request, '-out', at(`${name}.crt`), '-days', '30'],
      ['-CA', at(`${ca}.crt`), '-CAkey', at(`${ca}.key`), '-extfile', extensions],
      ['-set_serial', `0x${Buffer.from(name).toString('hex')}`],
    );
  }
  await writeFile(at('index.txt'), '');
  const config = ['[ca]', 'default_ca=own', '[own]', `database=${at('index.txt')}`];
  await writeFile(at('ca.conf'), [...config, 'default_md=sha256', ''].join('\n'));
  const signer = ['-config', at('ca.conf'), '-cert', at('ca.crt'), '-keyfile', at('ca.key')];
  await openssl(['ca', ...signer, '-revoke', at('revoked.crt')]);
  await openssl(['ca', ...signer, '-gencrl', '-crldays', '30', '-out', at('ca.crl')]);
}

function newKey(file: string): string[] {
  return ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', file];
}

/** As the servers' account, since PostgreSQL refuses a key that another one owns. */
async function openssl(...args: string[][]): Promise<void> {
  const ended = await runProgram('openssl', args.flat(), { asServer: true });
  if (ended.status !== 0) throw new Error(`openssl ${args.flat().join(' ')}: ${ended.stderr}`);
}
