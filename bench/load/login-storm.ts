/**
 * New logins at a steady rate, one process of its own: TCP, SSLRequest, a full TLS handshake,
 * SCRAM-SHA-256, until ReadyForQuery, then Terminate. The rate is kept whatever the answers take, so
 * that a pooler that is slow to answer is not asked less.
 *
 *   node login-storm.ts <port> <logins a second> <seconds>
 *
 * Prints what came of it as one line of JSON, a `StormResult`.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { loginTls } from '../../test/support/tls-client.ts';
import { percentile } from './report.ts';

/** What a storm reports. */
export interface StormResult {
  /** Logins that came to ReadyForQuery, a second. */
  readonly rate: number;
  readonly failed: number;
  /** Time of a login, from its connect to ReadyForQuery, in milliseconds. */
  readonly p50Ms: number;
  readonly p99Ms: number;
}

if (import.meta.main) {
  const [port = 0, rate = 0, seconds = 0] = process.argv.slice(2).map(Number);
  console.log(JSON.stringify(await storm(port, rate, seconds)));
}

async function storm(port: number, rate: number, seconds: number): Promise<StormResult> {
  const times: number[] = [];
  let failed = 0;
  const login = async (): Promise<void> => {
    const begun = performance.now();
    try {
      const { client } = await loginTls({ host: '127.0.0.1', port });
      times.push(performance.now() - begun);
      await client.end();
    } catch {
      failed++;
    }
  };
  const started = performance.now();
  const all: Promise<void>[] = [];
  for (let i = 0; i < rate * seconds; i++) {
    await sleep(Math.max(started + (i * 1000) / rate - performance.now(), 0));
    all.push(login());
  }
  await Promise.all(all);
  const tookSeconds = (performance.now() - started) / 1000;
  return {
    rate: times.length / tookSeconds,
    failed,
    p50Ms: percentile(times, 50),
    p99Ms: percentile(times, 99),
  };
}
