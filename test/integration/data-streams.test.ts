import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeCerts } from '../support/certs.ts';
import { bytesOf } from '../support/compare.ts';
import {
  bind,
  COPY_DONE,
  copyData,
  execute,
  parse,
  query,
  SYNC,
  textRows,
  typesOf,
} from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { WireClient } from '../support/wire-client.ts';

/** Streams far longer than any buffer, and sides that are slow: the pooler's memory stays flat. */

const MEGABYTE = 1 << 20;
const STREAM_BYTES = (process.env['PGFLEET_LONG'] === '1' ? 1024 : 200) * MEGABYTE;
/** What a worker may grow by: its heap may, buffers for the stream must not. */
const MAX_GROWTH_KB = 100 * 1024;
/**
 * The same over TLS, where each read has a buffer of its own: V8 collects them when 64 MB of such
 * memory have come together, however long the stream is.
 */
const MAX_TLS_GROWTH_KB = 160 * 1024;
const LONG_MS = 900_000;

const ROW = 8_000;
const ROWS = Math.ceil(STREAM_BYTES / ROW);
const SELECT = `SELECT n, repeat(chr(97 + n % 26), ${ROW}) FROM (SELECT generate_series(1, ${ROWS}) AS n) AS s`;

for (const [what, sql, link] of [
  ['a result', SELECT, 'clear'],
  ['a COPY', `COPY (${SELECT}) TO STDOUT`, 'clear'],
  ['a COPY over TLS', `COPY (${SELECT}) TO STDOUT`, 'tls'],
] as const) {
  test(`${what} of ${STREAM_BYTES / MEGABYTE} MB streams to a slow reader in constant memory`, async (t) => {
    const { postgres, fleet } = await started(t, link);
    const direct = await received(t, postgres, sql, false);
    const before = memory(fleet);
    const pooled = await received(t, fleet, sql, true);
    assert.ok(pooled.bytes > STREAM_BYTES);
    assert.deepEqual(pooled, direct);
    assertFlat(t, fleet, before, link === 'tls' ? MAX_TLS_GROWTH_KB : MAX_GROWTH_KB);
  });
}

test('one value of 96 MB streams to a slow reader without being collected', async (t) => {
  const { postgres, fleet } = await started(t);
  const sql = `SELECT repeat('0123456789abcdef', ${6 * MEGABYTE})`;
  const direct = await received(t, postgres, sql, false);
  const before = memory(fleet);
  assert.deepEqual(await received(t, fleet, sql, true), direct);
  assertFlat(t, fleet, before, 64 * 1024);
});

for (const link of ['clear', 'tls'] as const) {
  test(`a COPY of ${STREAM_BYTES / MEGABYTE} MB to a server that stalls is held back at its client (${link})`, async (t) => {
    const { postgres, fleet } = await started(t, link);
    await postgres.query('CREATE TABLE copied (v text)');
    await postgres.query('GRANT ALL ON copied TO app');
    const before = memory(fleet);
    const maxGrowthKb = link === 'tls' ? MAX_TLS_GROWTH_KB : MAX_GROWTH_KB;
    const client = await WireClient.login(fleet, { database: 'postgres' });
    t.after(() => client.destroy());
    client.send(query('COPY copied FROM STDIN'));
    await client.until('G');
    postgres.signal('SIGSTOP');
    const line = Buffer.from(`${'c'.repeat(65_000)}\n`);
    const lines = Math.ceil(STREAM_BYTES / line.length);
    const block = copyData(line);
    let sent = 0;
    const isStuck = async (): Promise<boolean> => {
      while (sent < lines) {
        sent++;
        if (!client.socket.write(block) && !(await drained(client, 500))) return true;
      }
      return false;
    };
    assert.ok(await isStuck(), 'the client is held back');
    assert.ok(sent * block.length < 64 * MEGABYTE, `${sent} lines were taken`);
    assertFlat(t, fleet, before, maxGrowthKb);
    postgres.signal('SIGCONT');
    assert.ok(await drained(client, LONG_MS));
    while (sent < lines) {
      sent++;
      if (!client.socket.write(block)) assert.ok(await drained(client, 60_000));
    }
    client.send(COPY_DONE);
    assert.equal(typesOf(await client.untilReady(LONG_MS)), 'C Z:I');
    const sums = await client.query('SELECT count(*), sum(length(v)) FROM copied', LONG_MS);
    assert.deepEqual(textRows(sums), [[String(lines), String(lines * 65_000)]]);
    assertFlat(t, fleet, before, maxGrowthKb);
    await client.end();
  });
}

test('parameters of 64 MB stream to the server without being collected', async (t) => {
  const { fleet } = await started(t);
  const before = memory(fleet);
  const value = bytesOf(64 * MEGABYTE);
  const hash = createHash('md5').update(value).digest('hex');
  const client = await WireClient.login(fleet);
  t.after(() => client.destroy());
  client.send(parse('hash', 'SELECT md5($1)', [17]), SYNC);
  assert.equal(typesOf(await client.untilReady()), '1 Z:I');
  client.send(bind({ statement: 'hash', values: [value], formats: [1] }), execute(), SYNC);
  const answer = await client.untilReady(LONG_MS);
  assert.deepEqual(textRows(answer), [[hash]]);
  assertFlat(t, fleet, before, 48 * 1024);
  await client.end();
});

/** @param link how the servers are reached */
async function started(
  t: TestContext,
  link: 'clear' | 'tls' = 'clear',
): Promise<{ readonly postgres: TestPostgres; readonly fleet: TestPgfleet }> {
  const certs = link === 'tls' ? await makeCerts() : null;
  const ssl = certs !== null && {
    ssl: 'on',
    ssl_cert_file: certs.file('server.crt'),
    ssl_key_file: certs.file('server.key'),
  };
  const postgres = await startPostgres({ settings: { ...ssl } });
  t.after(() => postgres.dispose());
  const server_tls_sslmode = link === 'tls' ? 'require' : 'disable';
  const settings = { default_pool_size: 4, server_tls_sslmode };
  const fleet = await startPgfleet({ postgres, size: 2, settings });
  t.after(() => fleet.stop());
  // Warm: what a worker loads and allocates once is not the stream's.
  for (let round = 0; round < 8; round++) {
    const client = await WireClient.login(fleet);
    await client.query("SELECT repeat('w', 4000000)");
    await client.end();
  }
  return { postgres, fleet };
}

interface Received {
  readonly bytes: number;
  readonly hash: string;
}

/**
 * Sends `sql` and digests all bytes up to the ReadyForQuery at the end. A slow reader reads nothing
 * for a while in which a pooler that did not hold back its server would have taken in everything.
 */
async function received(
  t: TestContext,
  address: TestPgfleet | TestPostgres,
  sql: string,
  isSlow: boolean,
): Promise<Received> {
  const client = await WireClient.login(address);
  t.after(() => client.destroy());
  const { socket } = client;
  socket.removeAllListeners('data');
  const hash = createHash('sha1');
  const ready = Buffer.from('5a0000000549', 'hex');
  let bytes = 0;
  let tail: Buffer = Buffer.alloc(0);
  let nextPause = MEGABYTE;
  let pauses = 0;
  const finished = new Promise<void>((resolve, reject) => {
    socket.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      hash.update(chunk);
      tail = Buffer.concat([tail, chunk.subarray(-ready.length)]).subarray(-ready.length);
      if (tail.equals(ready)) resolve();
      if (!isSlow || bytes < nextPause) return;
      nextPause += 8 * MEGABYTE;
      socket.pause();
      setTimeout(() => socket.resume(), pauses++ === 0 ? 1_500 : 20);
    });
    socket.once('close', () => reject(new Error('the connection was closed')));
  });
  socket.write(query(sql));
  await finished;
  await client.end();
  return { bytes, hash: hash.digest('hex') };
}

/** Whether all that was written has left for the kernel within `deadlineMs`. */
async function drained(client: WireClient, deadlineMs: number): Promise<boolean> {
  const until = performance.now() + deadlineMs;
  while (client.socket.writableLength > 0) {
    if (performance.now() > until) return false;
    await sleep(2);
  }
  return true;
}

/** Resident memory of each worker, in KB. */
function memory(fleet: TestPgfleet): ReadonlyMap<number, number> {
  return new Map(fleet.workers().map((pid) => [pid, statusField(pid, 'VmRSS')]));
}

/** Fails when a worker has at any moment held much more than `before`. */
function assertFlat(
  t: TestContext,
  fleet: TestPgfleet,
  before: ReadonlyMap<number, number>,
  maxGrowthKb = MAX_GROWTH_KB,
): void {
  for (const pid of fleet.workers()) {
    const growth = statusField(pid, 'VmHWM') - (before.get(pid) ?? 0);
    t.diagnostic(`worker ${pid}: ${before.get(pid)} KB before, peak ${growth} KB above`);
    assert.ok(growth < maxGrowthKb, `worker ${pid} grew by ${growth} KB`);
  }
}

/** A field of `/proc/<pid>/status` in KB (proc(5)): VmHWM is the peak of VmRSS. */
function statusField(pid: number, name: string): number {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(new RegExp(`^${name}:\\s*(\\d+) kB$`, 'm').exec(text)?.[1]);
}
