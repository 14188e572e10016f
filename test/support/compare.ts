import assert from 'node:assert/strict';
import { reportFields, typesOf, type WireMessage } from './messages.ts';
import { type Address, WireClient } from './wire-client.ts';

/** Comparing what the pooler says with what the server itself says. */

const DEADLINE_MS = 120_000;

/** All whole numbers from `first` to `last`, both included. */
export function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}

/** Bytes that look random, the same for the same size. */
export function bytesOf(size: number): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  let state = (size * 2_654_435_761 + 1) >>> 0;
  let at = 0;
  for (; at + 4 <= size; at += 4) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes.writeUInt32LE(state, at);
  }
  for (; at < size; at++) bytes[at] = at;
  return bytes;
}

/** A connection to the server itself and one to the pooler, both as `app`. */
export async function onBoth(
  postgres: Address,
  fleet: Address,
  use: (direct: WireClient, pooled: WireClient) => Promise<void>,
): Promise<void> {
  const direct = await WireClient.login(postgres);
  const pooled = await WireClient.login(fleet).catch((error: unknown) => {
    direct.destroy();
    throw error;
  });
  try {
    await use(direct, pooled);
    await Promise.all([direct.end(), pooled.end()]);
  } finally {
    direct.destroy();
    pooled.destroy();
  }
}

/** Runs statements whose answers do not matter, as long as they are no errors. */
export async function done(client: WireClient, sql: string): Promise<void> {
  failIfError(await client.query(sql, DEADLINE_MS), sql);
}

/** Fails with the server's words when one of `messages` is an error; `what` says of what. */
export function failIfError(messages: readonly WireMessage[], what: string): void {
  const error = messages.find(({ type }) => type === 'E');
  if (error !== undefined) assert.fail(`${what}: ${reportFields(error.body)['M']}`);
}

/** Fails, naming `what`, unless both say the same bytes. */
export function assertSame(
  found: readonly WireMessage[],
  wanted: readonly WireMessage[],
  what: string,
): void {
  assert.equal(typesOf(found), typesOf(wanted), what);
  for (const [index, { type, body }] of wanted.entries()) {
    if (found[index]!.body.equals(body)) continue;
    assert.fail(`${what}: message ${index} (${type}) differs`);
  }
}
