/**
 * Random first bytes: truncated, too long, changed, in any order and cut anywhere. Whatever comes, no
 * invariant breaks, nobody is let in who has not shown a password, and no more is kept than
 * PostgreSQL's limits for messages before the login. A failure names its seed; `PGFLEET_SEED` repeats
 * it.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import {
  cancelRequest,
  int32,
  message,
  packet,
  query,
  splitMessages,
  sslRequest,
  startup,
} from '../../support/messages.ts';
import { pick, randomFrom } from '../util/random.ts';
import { type ClientWorld, clientWorld } from './support.ts';

const MAX_STARTUP_BYTES = 10_000;
const MAX_AUTH_BYTES = 65_535;
const READ_BYTES = 65_536;
/** While a client is held: what was there, the read that brought the last of it, and one read more. */
const MAX_HELD_BYTES = 3 * READ_BYTES;
/** Makes of neighbouring seeds sequences that have nothing in common. */
const SPREAD = 0x9e37_79b1;
const INPUTS = process.env['PGFLEET_LONG'] === '1' ? 200_000 : 2_000;
/** Enough for all inputs on a machine that does nothing else; a loaded one makes fewer of them. */
const TIME_MS = process.env['PGFLEET_LONG'] === '1' ? 300_000 : 2_000;

type Random = () => number;
const below = (random: Random, limit: number): number => Math.floor(random() * limit);
const randomBytes = (random: Random, size: number): Buffer =>
  Buffer.from(Array.from({ length: size }, () => below(random, 256)));

const SSL = sslRequest();
const GSS = packet([int32(80_877_104)]);
const NAMES = ['user', 'database', 'options', 'replication', 'DateStyle', '_pq_.x', 'geqo', ''];
const VALUES = [
  'u',
  'd',
  'nobody',
  'pgbouncer',
  'pgfleet',
  'admin',
  '-c x=y',
  '-c \\',
  'on',
  '',
  '\x7f',
];
const CODES = [0x30000, 0x30002, 0x3ffff, 0x20000, 0x40000, 80_877_102, 80_877_103, 80_877_104];
const LENGTHS = [0, 3, 4, 5, 7, 8, 9, 16, 40, 9_999, 10_000, 10_001, 65_534, 65_535, 1 << 30, -1];

/** A piece that a client may send, or nearly. */
function piece(random: Random): Buffer {
  switch (below(random, 12)) {
    case 0:
      return SSL;
    case 1:
      return GSS;
    case 2:
      return cancelRequest(randomBytes(random, below(random, 300)));
    case 3:
      return startup({ user: pick(random, VALUES), database: pick(random, VALUES) });
    case 4: {
      const pairs = Array.from({ length: below(random, 6) }, () => [
        pick(random, NAMES),
        pick(random, VALUES),
      ]).flat();
      return packet([int32(pick(random, CODES)), ...pairs, Buffer.alloc(below(random, 3))]);
    }
    case 5:
      return message('p', [
        'SCRAM-SHA-256',
        int32(pick(random, LENGTHS)),
        Buffer.from('n,,n=,r=a'),
      ]);
    case 6:
      return message('p', [randomBytes(random, below(random, 40))]);
    case 7:
      return message(pick(random, ['p', 'Q', 'X', 'S', '\0']), [], pick(random, LENGTHS));
    case 8:
      return packet([int32(pick(random, CODES))], pick(random, LENGTHS));
    case 9:
      return query('SELECT 1');
    case 10:
      return Buffer.alloc(below(random, 90_000), below(random, 256));
    default:
      return randomBytes(random, below(random, 30));
  }
}

/** Some pieces one after the other, some of them with a fault, each as a write of its own or not. */
function input(random: Random): Buffer[] {
  const writes: Buffer[] = [];
  const add = (bytes: Buffer): void => {
    const last = below(random, 3) === 0 ? writes.pop() : undefined;
    writes.push(last === undefined ? bytes : Buffer.concat([last, bytes]));
  };
  for (let left = below(random, 3); left > 0; left--) add(pick(random, [SSL, GSS]));
  if (below(random, 2) === 0) {
    const login = { user: pick(random, ['u', 'nobody']), database: 'd' };
    add(below(random, 2) === 0 ? startup(login) : startup({ ...login, '_pq_.x': '' }, 0x3ffff));
  }
  for (let left = 1 + below(random, 4); left > 0; left--) {
    const next = Buffer.from(piece(random));
    const fault = below(random, 6);
    if (fault === 0 && next.length > 0) next[below(random, next.length)] = below(random, 256);
    add(fault === 1 ? next.subarray(0, below(random, next.length + 1)) : next);
  }
  return writes;
}

/** Each of the writes in pieces. */
function cut(random: Random, writes: readonly Buffer[]): Buffer[] {
  return writes.flatMap((bytes) => {
    const pieces: Buffer[] = [];
    const most = pick(random, [1, 3, 9, 100, READ_BYTES, READ_BYTES]);
    // A megabyte byte by byte would take all of the time.
    const size = bytes.length > 3_000 ? Math.max(most, 1_000) : most;
    for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.subarray(at, at + size));
    return pieces;
  });
}

/** Feeds one input in pieces; checks after each what must hold. */
async function feed(world: ClientWorld, random: Random, mayEnter: boolean): Promise<string> {
  const client = world.connect();
  const { session } = client;
  const writes = input(random);
  const what = writes.map((bytes) => bytes.toString('hex', 0, 60)).join(' ');
  let said: Buffer = Buffer.alloc(0);
  for (const bytes of cut(random, writes)) {
    // While a password is checked, or the pool awaited, the socket is not read for long.
    if (!client.socket.isReading) await turn();
    if (!client.socket.isReading || client.isClosed) break;
    client.send(bytes);
    said = Buffer.concat([said, client.bytes()]);
    if (client.isClosed || session.isWelcomed || session.isConsole) break;
    const kept = session.link.stashBytes;
    const isAsked = said.includes(0x52);
    const unheld = isAsked ? MAX_AUTH_BYTES + 1 : MAX_STARTUP_BYTES;
    const cap = session.link.isHeld ? MAX_HELD_BYTES : unheld;
    assert.ok(kept <= cap, `${kept} bytes are kept of ${what}`);
    if (below(random, 4) === 0) await turn();
  }
  await turn();
  said = Buffer.concat([said, client.bytes()]);
  const isIn = session.isWelcomed || session.isConsole;
  if (!mayEnter) assert.ok(!isIn, `let in by ${what}`);
  const kinds = kindsOf(said);
  // The console lets trusted users in at once, and may hear nonsense behind the login.
  assert.match(kinds, mayEnter ? /^N*v?(R*|RS*KZ)E?$/ : /^N*v?R*E?$/);
  client.socket.emit('end');
  client.socket.destroy();
  assert.ok(session.isClosed);
  return kinds;
}

/** What was said: N for each refusal of encryption, then the types of the messages. */
function kindsOf(said: Buffer): string {
  let refusals = 0;
  while (said[refusals] === 0x4e && said[refusals + 1] !== 0) refusals++;
  const { messages, rest } = splitMessages(said.subarray(refusals));
  assert.equal(rest.length, 0, 'whole messages only');
  return 'N'.repeat(refusals) + messages.map(({ type }) => type).join('');
}

async function fuzz(t: TestContext, authType: string, mayEnter: boolean): Promise<void> {
  const first = Number(process.env['PGFLEET_SEED'] ?? Date.now() % 1_000_000_000);
  const inputs = process.env['PGFLEET_SEED'] === undefined ? INPUTS : 1;
  const world = clientWorld(t, `auth_type = ${authType}\nmax_client_conn = 1000000`);
  const { lines } = world.given;
  const endsAt = performance.now() + TIME_MS;
  const seen = new Set<string>();
  let made = 0;
  for (; made < inputs && performance.now() < endsAt; made++) {
    const seed = first + made;
    try {
      seen.add(await feed(world, randomFrom(Math.imul(seed, SPREAD)), mayEnter));
      assert.ok(!lines.some((line) => line.includes('InvariantError')), lines.join('\n'));
    } catch (error) {
      throw new Error(`PGFLEET_SEED=${seed} fails`, { cause: error });
    }
    lines.length = 0;
    world.cancels.length = 0;
    world.ended.length = 0;
  }
  assert.equal(world.context.admission.ofUser('u'), 0, 'all that counted has left');
  t.diagnostic(`seeds ${first} to ${first + made - 1}: ${seen.size} kinds of answers`);
  if (inputs > 1) assert.ok(made > 20 && seen.size > 5, `${made} inputs, ${[...seen]}`);
}

test('random first bytes let nobody in who has to show a SCRAM password', (t) =>
  fuzz(t, 'scram-sha-256', false));
test('random first bytes let nobody in who has to show an MD5 password', (t) =>
  fuzz(t, 'md5', false));
test('random first bytes do no harm where everybody is trusted', (t) => fuzz(t, 'trust', true));
