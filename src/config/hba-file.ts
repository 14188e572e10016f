import { ipBytes } from '../util/ip-address.ts';
import type { ClientName, HbaMethod, HbaNames, HbaNetwork, HbaRule, HbaType } from './hba-rules.ts';
import type { Problem } from './problem.ts';
import {
  type Place,
  type RuleFiles,
  type RuleLine,
  RuleReader,
  type RuleToken,
} from './rule-lines.ts';

/**
 * Reads `auth_hba_file`. The lines are PgBouncer's, and with them PostgreSQL's `include` directives,
 * `hostgssenc` and `hostnogssenc`, and the option `clientname` of `cert`. A line that PgBouncer would
 * skip with a warning is an error in its words: to skip a `reject` opens what it was to close.
 */

const TYPES: Readonly<Record<string, HbaType>> = {
  local: 'local',
  host: 'host',
  hostssl: 'hostssl',
  hostnossl: 'hostnossl',
  // No connection here is encrypted by GSSAPI, so it means every TCP connection.
  hostnogssenc: 'host',
  hostgssenc: 'host',
};
const SIMPLE_METHODS = {
  trust: 'trust',
  reject: 'reject',
  password: 'plain',
  md5: 'md5',
  'scram-sha-256': 'scram-sha-256',
} as const;
const CLIENT_NAMES: readonly string[] = ['CN', 'DN'] satisfies ClientName[];

/** Why a line cannot be read. */
class BadLine extends Error {}

/**
 * @param place the setting that names the file
 * @param maps names of the ident maps that there are; null: their file has errors of its own
 */
export function readHbaFile(
  path: string,
  place: Place,
  maps: ReadonlySet<string> | null,
  files: RuleFiles,
): { rules: HbaRule[]; problems: readonly Problem[] } {
  const reader = new RuleReader('hba', files);
  const rules: HbaRule[] = [];
  for (const line of reader.lines(path, place)) {
    try {
      const rule = new LineReader(line, reader, maps).rule();
      if (line.tokens[0]!.text !== 'hostgssenc') rules.push(rule);
      else reader.warning(line, 'hostgssenc never matches: GSSAPI encryption is not supported');
    } catch (error) {
      if (!(error instanceof BadLine)) throw error;
      reader.error(line, error.message);
    }
  }
  if (rules.length === 0 && !reader.hasError) {
    reader.warning({ file: path, line: 0 }, 'no rule in it: every login will be refused');
  }
  return { rules, problems: reader.problems };
}

/** Reads one line from left to right; every method throws BadLine. */
class LineReader {
  readonly #line: RuleLine;
  readonly #reader: RuleReader;
  readonly #maps: ReadonlySet<string> | null;
  #at = 0;

  constructor(line: RuleLine, reader: RuleReader, maps: ReadonlySet<string> | null) {
    this.#line = line;
    this.#reader = reader;
    this.#maps = maps;
  }

  rule(): HbaRule {
    const type = this.#type();
    const databases = this.#names('database');
    const users = this.#names('user');
    const network = type === 'local' ? null : this.#network();
    return { type, databases, users, network, method: this.#method() };
  }

  #type(): HbaType {
    const { kind, text } = this.#take('connection type');
    if (kind === 'word' && Object.hasOwn(TYPES, text)) return TYPES[text]!;
    const hint = /^include/.test(text) ? ' (include takes one file name)' : '';
    throw new BadLine(`unknown type: ${text}${hint}`);
  }

  #names(column: 'database' | 'user'): HbaNames {
    const list = new NameList(column);
    do {
      const token = this.#take(`${column} name`);
      if (token.kind === 'comma') throw new BadLine(`a ${column} name is missing before a comma`);
      this.#addName(list, token, this.#line);
    } while (this.#eatComma());
    return list.names();
  }

  #addName(list: NameList, token: RuleToken, line: RuleLine): void {
    const { kind, text } = token;
    if (kind === 'bad') throw new BadLine(text);
    if (kind === 'quoted' || !text.startsWith('@')) return list.add(token);
    if (text === '@') throw new BadLine('no file name behind @');
    const before = this.#reader.problems.length;
    for (const inner of this.#reader.listLines(text.slice(1), line)) {
      for (const each of inner.tokens) {
        if (each.kind !== 'comma') this.#addNameOf(list, each, inner);
      }
    }
    if (this.#reader.problems.length > before) throw new BadLine(`cannot use ${text}`);
  }

  /** A name in a file of names: what is wrong with it is wrong there. */
  #addNameOf(list: NameList, token: RuleToken, line: RuleLine): void {
    try {
      this.#addName(list, token, line);
    } catch (error) {
      if (!(error instanceof BadLine)) throw error;
      this.#reader.error(line, error.message);
    }
  }

  #network(): HbaNetwork | null {
    const token = this.#take('address');
    if (token.kind !== 'word') throw new BadLine(`did not find address - '${token.text}'`);
    if (token.text === 'all') return null;
    const [text, bits, ...rest] = token.text.split('/');
    const address = ipBytes(text!);
    if (address === null) {
      throw new BadLine(`failed to parse address - ${text} (only IP addresses can be given)`);
    }
    const mask = bits === undefined ? this.#mask(address) : maskOf(bits, address, rest);
    if (address.some((byte, at) => (byte & mask[at]!) !== byte)) {
      // PgBouncer keeps such a rule, and it never matches.
      throw new BadLine(`address does not match mask: ${text} / ${printMask(mask)}`);
    }
    return { address, mask };
  }

  #mask(address: readonly number[]): readonly number[] {
    const token = this.#next();
    if (token?.kind !== 'word') throw new BadLine('did not find mask');
    const mask = ipBytes(token.text);
    if (mask?.length === address.length) return mask;
    throw new BadLine(`failed to parse mask: ${token.text}`);
  }

  #method(): HbaMethod {
    const token = this.#take('method');
    const { kind, text } = token;
    if (kind !== 'word') throw new BadLine(`unsupported method: buf=${text}`);
    if (text === 'ldap') {
      return { kind: text, options: withoutComment(this.#line.text.slice(token.end)) };
    }
    if (text === 'peer') return { kind: text, map: this.#options([]).map };
    if (text === 'cert') return { kind: text, ...this.#options(['clientname']) };
    if (!Object.hasOwn(SIMPLE_METHODS, text)) {
      throw new BadLine(`unsupported method: buf=${text}`);
    }
    this.#options([]);
    return { kind: SIMPLE_METHODS[text as keyof typeof SIMPLE_METHODS] };
  }

  /** `map=NAME`, which PgBouncer takes with every method, and `more` that this method has. */
  #options(more: readonly string[]): { map: string | null; clientname: ClientName } {
    const given = new Map<string, string>();
    for (let token = this.#next(); token !== undefined; token = this.#next()) {
      const [, key, value] = /^([^=]*)=(.*)$/.exec(token.text) ?? [];
      if (token.kind !== 'word') throw new BadLine('unsupported parameters');
      if (key === undefined) {
        throw new BadLine(`Ident map ${token.text} is malformed. It is not in map=value format.`);
      }
      if (given.has(key) || !['map', ...more].includes(key)) {
        throw new BadLine(`unsupported parameters: ${token.text}`);
      }
      given.set(key, value!);
    }
    const map = given.get('map') ?? null;
    if (map !== null && this.#maps?.has(map) === false) {
      throw new BadLine(`Ident map ${map} is not found in ident config file`);
    }
    const clientname = given.get('clientname') ?? 'any';
    if (given.has('clientname') && !CLIENT_NAMES.includes(clientname)) {
      throw new BadLine(`clientname must be CN or DN: ${clientname}`);
    }
    return { map, clientname: clientname as ClientName };
  }

  #eatComma(): boolean {
    if (this.#line.tokens[this.#at]?.kind !== 'comma') return false;
    this.#at++;
    return true;
  }

  #take(what: string): RuleToken {
    const token = this.#next();
    if (token === undefined) throw new BadLine(`the line ends before its ${what}`);
    return token;
  }

  #next(): RuleToken | undefined {
    const token = this.#line.tokens[this.#at];
    if (token?.kind === 'bad') throw new BadLine(token.text);
    this.#at++;
    return token;
  }
}

/** What a column of names says, collected. */
class NameList {
  readonly #column: 'database' | 'user';
  readonly #names = new Set<string>();
  readonly #words = new Set<string>();

  constructor(column: 'database' | 'user') {
    this.#column = column;
  }

  add({ kind, text }: RuleToken): void {
    if (kind === 'quoted') {
      this.#names.add(text);
      return;
    }
    switch (text) {
      case 'all':
      case 'sameuser':
        this.#words.add(text);
        return;
      case 'samerole':
      case 'samegroup':
        throw new BadLine(`${text} is not supported`);
      case 'replication':
        // PgBouncer takes it for the keyword in both columns, and then no user matches.
        if (this.#column === 'user') {
          throw new BadLine('replication is no user (quote it if it is a name)');
        }
        this.#words.add(text);
        return;
    }
    if (text.startsWith('+')) {
      throw new BadLine(`groups are not supported: ${text} (quote it if it is a name)`);
    }
    if (text.startsWith('/')) {
      throw new BadLine(
        `regular expressions are not supported: ${text} (quote it if it is a name)`,
      );
    }
    this.#names.add(text);
  }

  names(): HbaNames {
    return {
      all: this.#words.has('all'),
      sameUser: this.#words.has('sameuser'),
      replication: this.#words.has('replication'),
      names: [...this.#names],
    };
  }
}

/** What stands before a `#` outside of quotes. */
function withoutComment(text: string): string {
  const [kept] = /^(?:[^"#]|"[^"]*(?:"|$))*/.exec(text)!;
  return kept.trim();
}

function maskOf(
  bits: string,
  address: readonly number[],
  rest: readonly string[],
): readonly number[] {
  const count = Number(bits);
  if (!/^[0-9]{1,3}$/.test(bits) || count > address.length * 8 || rest.length > 0) {
    throw new BadLine('invalid mask');
  }
  return address.map((_, at) => {
    const inByte = Math.min(8, Math.max(0, count - at * 8));
    return (0xff << (8 - inByte)) & 0xff;
  });
}

function printMask(mask: readonly number[]): string {
  if (mask.length === 4) return mask.join('.');
  const groups = Array.from({ length: 8 }, (_, at) => (mask[2 * at]! << 8) | mask[2 * at + 1]!);
  return groups.map((group) => group.toString(16)).join(':');
}
