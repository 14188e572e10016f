/**
 * New logins at a steady rate, one process of its own: TCP, SSLRequest, a full TLS 1.3 handshake (no
 * session is resumed), SCRAM-SHA-256, until ReadyForQuery, then Terminate. The rate is kept whatever
 * the answers take, so that a pooler that is slow to answer is not asked less.
 *
 *   node login-storm.ts <port> <logins a second> <seconds>
 *
 * Prints what came of it as one line of JSON, a `StormResult`.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { createSecureContext } from 'node:tls';
import { loginTls } from '../../test/support/tls-client.ts';
import { percentile } from './report.ts';

/** What a storm reports. */
export interface StormResult {
  readonly logins: number;
  /** Logins that came to ReadyForQuery, a second. */
  readonly rate: number;
  readonly failed: number;
  /** Why the first of them did. */
  readonly failure: string | null;
  /** Time of a login, from when it was due to ReadyForQuery, in milliseconds. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** CPU time of the clients for one login, in microseconds. */
  readonly clientCpuUs: number;
}

if (import.meta.main) {
  const [port = 0, rate = 0, seconds = 0] = process.argv.slice(2).map(Number);
  console.log(JSON.stringify(await storm(port, rate, seconds)));
}

async function storm(port: number, rate: number, seconds: number): Promise<StormResult> {
  const tls = { secureContext: createSecureContext({ minVersion: 'TLSv1.3' }) };
  const times: number[] = [];
  let failed = 0;
  let failure: string | null = null;
  const login = async (dueMs: number): Promise<void> => {
    try {
      const { client } = await loginTls({ host: '127.0.0.1', port }, tls);
      times.push(performance.now() - dueMs);
      await client.end();
    } catch (error) {
      failed++;
      failure ??= String(error);
    }
  };
  const started = performance.now();
  const all: Promise<void>[] = [];
  for (let i = 0; i < rate * seconds; i++) {
    const dueMs = started + (i * 1000) / rate;
    await sleep(Math.max(dueMs - performance.now(), 0));
    all.push(login(dueMs));
  }
  await Promise.all(all);
  const tookSeconds = (performance.now() - started) / 1000;
  if (times.length === 0) throw new Error(`no client could log in: ${failure}`);
  const { user, system } = process.cpuUsage();
  return {
    logins: times.length,
    rate: times.length / tookSeconds,
    failed,
    failure,
    p50Ms: percentile(times, 50),
    p99Ms: percentile(times, 99),
    clientCpuUs: (user + system) / times.length,
  };
}
