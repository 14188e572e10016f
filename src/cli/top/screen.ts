import { bytes, fit, short, time } from './cells.ts';
import type { Rates, Reading } from './readings.ts';

/** Draws what `pgfleet top` knows, as lines of text. Without I/O. */

/** What the rows of pools are sorted by; the one with most comes first. */
export const SORTS = ['waiting', 'clients', 'servers', 'tx/s', 'name'] as const;
export type Sort = (typeof SORTS)[number];

/** How a line stands out. */
export type Look = 'plain' | 'title' | 'alarm' | 'dim';

export interface Line {
  readonly text: string;
  readonly look: Look;
}

export interface View {
  /** What is looked at: `127.0.0.1:6432`. */
  readonly place: string;
  readonly version: string;
  /** Time of day. */
  readonly now: string;
  /** Seconds between two readings. */
  readonly interval: number;
  readonly sort: Sort;
  /** First row of pools that is shown. */
  readonly scroll: number;
  readonly isFrozen: boolean;
  readonly showsHelp: boolean;
  /** Why there is no newer reading; null: there is. */
  readonly trouble: string | null;
  /** Null: none has come yet. */
  readonly reading: Reading | null;
  /** Null: not known before a second reading. */
  readonly rates: Rates | null;
}

/** Columns and rows of a terminal; rows may be Infinity. */
export interface Size {
  readonly columns: number;
  readonly rows: number;
}

type Pool = Reading['pools'][number];
type Process = Reading['processes'][number];

interface Column<Row> {
  readonly title: string;
  readonly width: number;
  /** Fewest columns of a terminal that shows it; default: always. */
  readonly from?: number;
  readonly value: (row: Row, rates: Rates | null) => string;
}

/** Narrower than that nothing useful can be shown. */
const LEAST_COLUMNS = 20;
const HELP = 'q quit  s sort  p pause  ↑↓ scroll  ? help';
const MODES: Readonly<Record<string, string>> = {
  transaction: 'tx',
  session: 'sess',
  statement: 'stmt',
};

const POOL_COLUMNS: readonly Column<Pool>[] = [
  { title: 'mode', width: 4, from: 60, value: ({ mode }) => MODES[mode] ?? mode },
  { title: 'clients', width: 7, value: ({ clients }) => short(clients) },
  { title: 'waiting', width: 7, value: ({ waiting }) => short(waiting) },
  { title: 'longest', width: 7, from: 50, value: ({ maxWait }) => time(maxWait * 1_000_000) },
  { title: 'active', width: 6, value: ({ active }) => short(active) },
  { title: 'idle', width: 5, from: 56, value: ({ idle }) => short(idle) },
  { title: 'other', width: 5, from: 90, value: ({ other }) => short(other) },
  {
    title: 'db tx/s',
    width: 7,
    from: 70,
    value: ({ database }, rates) => short(Math.round(rates?.byDatabase.get(database) ?? 0)),
  },
];

const PROCESS_COLUMNS: readonly Column<Process>[] = [
  { title: 'worker', width: 6, value: ({ process }) => process },
  { title: 'pid', width: 7, from: 50, value: ({ pid }) => pid },
  { title: 'clients', width: 7, value: ({ clients }) => short(clients) },
  { title: 'servers', width: 7, value: ({ servers }) => short(servers) },
  { title: 'cpu %', width: 6, value: ({ pid }, rates) => (rates?.cpu.get(pid) ?? 0).toFixed(1) },
  { title: 'memory', width: 6, from: 50, value: ({ memory }) => bytes(memory) },
  { title: 'loop delay', width: 10, from: 64, value: ({ delayUs }) => time(delayUs) },
];

/** The screen: at most `size.rows` lines of at most `size.columns` columns. */
export function draw(view: View, size: Size): Line[] {
  if (size.columns < LEAST_COLUMNS || size.rows < 1) return [];
  const { reading, rates } = view;
  const lines: Line[] = [...headLines(view)];
  if (view.showsHelp) lines.push({ text: HELP, look: 'dim' });
  if (reading !== null) {
    const processes = processLines(reading, rates, size);
    const room = size.rows - lines.length - 1;
    // Processes are few and the same at every look: they may have a third of what is left.
    const shown = processes.slice(0, Math.max(Math.min(processes.length, Math.floor(room / 3)), 0));
    lines.push(BLANK, ...poolLines(view, reading, size.columns, room - shown.length));
    lines.push(...shown);
  }
  return lines
    .slice(0, size.rows)
    .map(({ text, look }) => ({ text: fit(text, size.columns).trimEnd(), look }));
}

const BLANK: Line = { text: '', look: 'plain' };

function headLines(view: View): Line[] {
  const { place, version, now, interval, trouble, reading, rates, isFrozen } = view;
  const what = [version, now, isFrozen ? 'paused' : `every ${interval}s`, place];
  const lines: Line[] = [{ text: what.join('  '), look: 'title' }];
  if (trouble !== null) lines.push({ text: trouble, look: 'alarm' });
  if (reading === null) return lines;
  const total = (key: 'clients' | 'waiting' | 'active' | 'idle' | 'other'): number =>
    reading.pools.reduce((sum, pool) => sum + pool[key], 0);
  const servers = total('active') + total('idle') + total('other');
  const waiting = total('waiting');
  lines.push({
    text:
      `${reading.state}  clients ${total('clients')}, waiting ${waiting}` +
      `  servers ${servers}, active ${total('active')}`,
    look: waiting > 0 || reading.state !== 'active' ? 'alarm' : 'plain',
  });
  if (rates !== null) {
    const { transactions, queries, received, sent, queryUs, waitUs } = rates;
    lines.push({
      text:
        `tx/s ${short(Math.round(transactions))}  queries/s ${short(Math.round(queries))}` +
        `  query ${time(queryUs)}  wait ${time(waitUs)}  in ${bytes(received)}/s  out ${bytes(sent)}/s`,
      look: 'plain',
    });
  }
  return lines;
}

/** A title and as many pools as `room` allows, with a note of those that do not fit. */
function poolLines(view: View, reading: Reading, columns: number, room: number): Line[] {
  if (room < 2) return [];
  const { rates, sort } = view;
  const numbers = POOL_COLUMNS.filter(({ from = 0 }) => columns >= from);
  const taken = numbers.reduce((sum, { width }) => sum + width + 1, 0);
  const nameWidth = Math.max(columns - taken - 1, 6);
  const userWidth = Math.floor(nameWidth / 2);
  const row = (database: string, user: string, cells: readonly string[]): string =>
    `${fit(database, nameWidth - userWidth)} ${fit(user, userWidth)} ${cells.join(' ')}`;
  const title = row('database', 'user', titles(numbers));
  const pools = sorted(reading.pools, rates, sort);
  const isCut = pools.length > room - 1;
  const fits = isCut ? room - 2 : pools.length;
  const first = Math.max(Math.min(view.scroll, pools.length - fits), 0);
  const lines: Line[] = [{ text: title, look: 'title' }];
  for (const pool of pools.slice(first, first + fits)) {
    lines.push({
      text: row(pool.database, pool.user, cellsOf(numbers, pool, rates)),
      look: pool.waiting > 0 ? 'alarm' : 'plain',
    });
  }
  if (isCut)
    lines.push({ text: `${first + 1}–${first + fits} of ${pools.length} pools`, look: 'dim' });
  return lines;
}

function processLines(reading: Reading, rates: Rates | null, { columns }: Size): Line[] {
  if (reading.processes.length === 0) return [];
  const numbers = PROCESS_COLUMNS.filter(({ from = 0 }) => columns >= from);
  return [
    BLANK,
    { text: `${titles(numbers).join(' ')}  state`, look: 'title' },
    ...reading.processes.map(
      (each): Line => ({
        text: `${cellsOf(numbers, each, rates).join(' ')}  ${each.state}`,
        look: each.state === 'silent' ? 'alarm' : 'plain',
      }),
    ),
  ];
}

function titles<Row>(columns: readonly Column<Row>[]): string[] {
  return columns.map(({ title, width }) => fit(title, width, true));
}

function cellsOf<Row>(columns: readonly Column<Row>[], row: Row, rates: Rates | null): string[] {
  return columns.map(({ width, value }) => fit(value(row, rates), width, true));
}

function sorted(pools: readonly Pool[], rates: Rates | null, sort: Sort): Pool[] {
  const rank = (pool: Pool): number => {
    switch (sort) {
      case 'waiting':
        return pool.waiting;
      case 'clients':
        return pool.clients;
      case 'servers':
        return pool.active + pool.idle + pool.other;
      case 'tx/s':
        return rates?.byDatabase.get(pool.database) ?? 0;
      case 'name':
        return 0;
    }
  };
  const byName = (a: Pool, b: Pool): number =>
    a.database.localeCompare(b.database) || a.user.localeCompare(b.user);
  return pools.toSorted((a, b) => rank(b) - rank(a) || byName(a, b));
}
