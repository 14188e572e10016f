/**
 * What the known texts of PgBouncer's log lines say, as fields of their own for readers of JSON. The
 * texts are a contract already, so they are read back here instead of being told twice by whoever
 * writes them, and a log in text pays nothing.
 */

type Value = string | number;
type Fields = Readonly<Record<string, Value>>;

interface Known {
  /** Its named groups become the fields. */
  readonly pattern: RegExp;
  readonly event: string;
  readonly numbers?: readonly string[];
}

const KNOWN: readonly Known[] = [
  {
    pattern: /^closing because: (?<reason>.*) \(age=(?<age>\d+)s\)$/s,
    event: 'closing',
    numbers: ['age'],
  },
  {
    pattern: /^login attempt: db=.* user=.* tls=(?<tls>\S+) replication=(?<replication>\w+)$/s,
    event: 'login_attempt',
  },
  { pattern: /^login failed: db=/, event: 'login_failed' },
  { pattern: /^no such user: (?<name>.*)$/s, event: 'no_such_user' },
  {
    pattern: /^new connection to server(?: \(from (?<from>.*)\))?$/,
    event: 'server_connected',
  },
  { pattern: /^SSL established: (?<tls>.*)$/, event: 'tls_established' },
  {
    pattern: /^server login failed: (?<severity>[A-Z]+) (?<error>.*)$/s,
    event: 'server_login_failed',
  },
  { pattern: /^pooler error: (?<error>.*)$/s, event: 'pooler_error' },
  { pattern: /^registered new auto-database: (?<name>.*)$/s, event: 'auto_database' },
  { pattern: /^taking connection from reserve_pool$/, event: 'reserve_pool' },
  {
    pattern: /^(?<command>[A-Z_]+(?: WAIT_FOR_\w+)?)(?: '(?<database>.*)')? command issued$/s,
    event: 'command',
  },
  { pattern: /^got (?<signal>SIG[A-Z0-9]+), /, event: 'signal' },
  { pattern: /^listening on (?<address>.*)$/, event: 'listening' },
  { pattern: /^process up: /, event: 'process_up' },
  {
    pattern: /^fleet up: (?<workers>\d+) workers, generation (?<generation>\d+)$/,
    event: 'fleet_up',
    numbers: ['workers', 'generation'],
  },
  {
    pattern: /^worker (?<of>\d+) (?:re)?started \(pid (?<child>\d+)/,
    event: 'worker_started',
    numbers: ['of', 'child'],
  },
  {
    pattern: /^worker (?<of>\d+) died: (?<how>.*?) \(pid (?<child>\d+), /,
    event: 'worker_died',
    numbers: ['of', 'child'],
  },
];

/** `12 xacts/s`, `in 5 B/s` and their like. */
const STATS: Readonly<Record<string, RegExp>> = {
  xacts_per_s: /(\d+) xacts\/s/,
  queries_per_s: /(\d+) queries\/s/,
  client_parses_per_s: /(\d+) client parses\/s/,
  server_parses_per_s: /(\d+) server parses\/s/,
  binds_per_s: /(\d+) binds\/s/,
  client_logins_per_s: /(\d+) client logins\/s/,
  in_bytes_per_s: /in (\d+) B\/s/,
  out_bytes_per_s: /out (\d+) B\/s/,
  xact_us: /xact (\d+) us/,
  query_us: /query (\d+) us/,
  wait_us: /wait (\d+) us/,
};

/** `event` and its fields; none of them for a text that is not known. */
export function fieldsOf(text: string): Fields {
  if (text.startsWith('stats: ')) return { event: 'stats', ...statsOf(text) };
  for (const { pattern, event, numbers = [] } of KNOWN) {
    const found = pattern.exec(text);
    if (found === null) continue;
    const fields: Record<string, Value> = { event };
    for (const [name, value] of Object.entries(found.groups ?? {})) {
      if (value !== undefined) fields[name] = numbers.includes(name) ? Number(value) : value;
    }
    return fields;
  }
  return {};
}

function statsOf(text: string): Fields {
  const fields: Record<string, number> = {};
  for (const [name, pattern] of Object.entries(STATS)) {
    const found = pattern.exec(text);
    if (found !== null) fields[name] = Number(found[1]);
  }
  return fields;
}
