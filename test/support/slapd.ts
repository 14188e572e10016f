import { type ChildProcess, spawn } from 'node:child_process';
import { accessSync, closeSync, openSync, readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { asServer, giveToServer } from './account.ts';
import { makeCerts } from './certs.ts';
import { makeFolder, removeFolder } from './folders.ts';
import { freePort } from './ports.ts';
import { hasEnded, waitForEnd } from './processes.ts';
import { runProgram } from './programs.ts';
import { until } from './until.ts';

/** Where Debian has the server and the programs that write its database. */
const PROGRAM = '/usr/sbin/slapd';
const SCHEMAS = '/etc/ldap/schema';
const MODULES = '/usr/lib/ldap';

export const SUFFIX = 'dc=example,dc=net';
/** The account that may search, and whose password that is. */
export const READER = { dn: `cn=reader,${SUFFIX}`, password: 'read "me"' };

/** True when Debian's slapd is there. */
export function hasSlapd(): boolean {
  try {
    accessSync(PROGRAM);
    return true;
  } catch {
    return false;
  }
}

/** An entry of a person: its name below the suffix, and its attributes. */
export interface Person {
  readonly rdn: string;
  readonly uid: string;
  readonly password: string;
  /** Default: the uid with `@example.net`. */
  readonly mail?: string;
}

export interface SlapdOptions {
  readonly people: readonly Person[];
  /** Certificate that it shows; default: `server`. */
  readonly cert?: 'server' | 'wrong-name';
  /** More lines of the database's configuration. */
  readonly lines?: readonly string[];
}

/** A real LDAP server with a folder and two ports of its own. */
export class TestSlapd {
  readonly host = '127.0.0.1';
  readonly port: number;
  /** For connections that are encrypted from the start. */
  readonly tlsPort: number;
  readonly folder: string;
  #child: ChildProcess | null = null;

  constructor(port: number, tlsPort: number, folder: string) {
    this.port = port;
    this.tlsPort = tlsPort;
    this.folder = folder;
  }

  log(): string {
    return readFileSync(join(this.folder, 'log'), 'utf8');
  }

  async start(): Promise<void> {
    const output = openSync(join(this.folder, 'log'), 'a');
    const places = `ldap://${this.host}:${this.port}/ ldaps://${this.host}:${this.tlsPort}/`;
    // With a debug level, whichever, it stays in the foreground and says each operation.
    const args = ['-f', join(this.folder, 'slapd.conf'), '-h', places, '-d', 'stats'];
    const stdio = ['ignore', output, output] as const;
    const child = spawn(PROGRAM, args, { ...asServer, cwd: this.folder, stdio: [...stdio] });
    closeSync(output);
    this.#child = child;
    await until('slapd listens', async () => {
      if (hasEnded(child)) throw new Error(`slapd ended: ${this.log()}`);
      return (await accepts(this.port)) && (await accepts(this.tlsPort));
    });
  }

  /** Ends the server; its data stays. */
  async stop(): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (child === null || hasEnded(child)) return;
    child.kill('SIGTERM');
    await waitForEnd('slapd', child, 10_000);
  }

  async dispose(): Promise<void> {
    await this.stop();
    await removeFolder(this.folder);
  }

  /** Gives a person another password. */
  async setPassword(rdn: string, password: string): Promise<void> {
    const dn = `${rdn},${SUFFIX}`;
    const root = ['-x', '-H', `ldap://${this.host}:${this.port}`, '-D', `cn=root,${SUFFIX}`];
    const ended = await runProgram('ldappasswd', [...root, '-w', 'root', '-s', password, dn]);
    if (ended.status !== 0) throw new Error(`ldappasswd: ${ended.stderr}`);
  }

  /** How often the log says that a bind, search or the like with this text came. */
  count(text: string): number {
    return this.log().split(text).length - 1;
  }
}

/** Starts a server that knows some people; end it with `dispose`. */
export async function startSlapd(options: SlapdOptions): Promise<TestSlapd> {
  const folder = await makeFolder('slapd');
  const slapd = new TestSlapd(await freePort(), await freePort(), folder);
  try {
    await mkdir(join(folder, 'db'));
    await giveToServer(join(folder, 'db'));
    await write(join(folder, 'slapd.conf'), await configText(folder, options));
    await write(join(folder, 'data.ldif'), dataText(options.people));
    const files = ['-f', join(folder, 'slapd.conf'), '-l', join(folder, 'data.ldif')];
    const loaded = await runProgram('/usr/sbin/slapadd', ['-q', ...files], { asServer: true });
    if (loaded.status !== 0) throw new Error(`slapadd: ${loaded.stderr}`);
    await slapd.start();
    return slapd;
  } catch (error) {
    await slapd.dispose();
    throw error;
  }
}

async function configText(folder: string, options: SlapdOptions): Promise<string> {
  const { cert = 'server', lines = [] } = options;
  const certs = await makeCerts();
  return [
    ...['core', 'cosine', 'inetorgperson'].map((name) => `include ${SCHEMAS}/${name}.schema`),
    `pidfile ${join(folder, 'pid')}`,
    `modulepath ${MODULES}`,
    'moduleload back_mdb',
    `TLSCACertificateFile ${certs.file('ca.crt')}`,
    `TLSCertificateFile ${certs.file(`${cert}.crt`)}`,
    `TLSCertificateKeyFile ${certs.file(`${cert}.key`)}`,
    'database mdb',
    'maxsize 16777216',
    `suffix "${SUFFIX}"`,
    `rootdn "cn=root,${SUFFIX}"`,
    'rootpw root',
    `directory ${join(folder, 'db')}`,
    'index objectClass,uid eq',
    ...lines,
    '',
  ].join('\n');
}

function dataText(people: readonly Person[]): string {
  const units = ['people', 'machines', 'staff'].map((name) => `ou=${name},${SUFFIX}`);
  const entries = [
    [`dn: ${SUFFIX}`, 'objectClass: dcObject', 'objectClass: organization', 'dc: example', 'o: x'],
    ...units.map((dn) => [`dn: ${dn}`, 'objectClass: organizationalUnit']),
    [
      `dn: ${READER.dn}`,
      'objectClass: organizationalRole',
      'objectClass: simpleSecurityObject',
      base64('userPassword', READER.password),
    ],
    ...people.map(({ rdn, uid, password, mail = `${uid}@example.net` }) => [
      base64('dn', `${rdn},${SUFFIX}`),
      'objectClass: inetOrgPerson',
      base64('uid', uid),
      base64('cn', uid),
      base64('sn', uid),
      base64('mail', mail),
      base64('userPassword', password),
    ]),
  ];
  return entries.map((lines) => `${lines.join('\n')}\n`).join('\n');
}

/** An LDIF line of any value (RFC 2849). */
function base64(attribute: string, value: string): string {
  return `${attribute}:: ${Buffer.from(value).toString('base64')}`;
}

async function write(path: string, text: string): Promise<void> {
  await writeFile(path, text);
  await giveToServer(path);
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
