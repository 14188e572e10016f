/** Authentication messages that no client would send end their connection, and nothing else. */
import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { test } from 'node:test';
import { int32, message, startup } from '../support/messages.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { Random } from '../support/random.ts';
import { ScramClient } from '../support/scram.ts';
import { WireClient } from '../support/wire-client.ts';

const MESSAGES = 10_000;
/** Connections at one time. */
const AT_ONCE = 24;
/** Most that is sent in one message; the limit on authentication messages is 65,535 bytes. */
const MOST_BYTES = 70_000;

const FIRSTS = [
  'n,,n=,r=abc',
  'y,,n=,r=abc',
  'n,a=other,n=,r=abc',
  'p=tls-server-end-point,,n=,r=abc',
  'p=tls-unique,,n=,r=abc',
  'n,,m=ext,n=,r=abc',
  'n,,n=,r=',
  ',,,,',
];
const MECHANISMS = ['SCRAM-SHA-256', 'SCRAM-SHA-256-PLUS', 'SCRAM-SHA-1', '', 'PLAIN'];

const bytesOf = (random: Random, count: number): Buffer =>
  Buffer.from(Array.from({ length: count }, () => random.below(256)));

/** A length that is mostly small, now and then beyond every limit. */
const sizeOf = (random: Random): number =>
  random.below(50) === 0 ? random.below(MOST_BYTES) : random.below(120);

/** SASLInitialResponse, its length now and then a lie. */
function initial(random: Random, mechanism: string, first: Buffer): Buffer {
  const says = random.below(10) === 0 ? random.pick([-1, -2, 0, 1, 1 << 30]) : first.length;
  return message('p', [mechanism, int32(says), first]);
}

/** One message of a client that means harm, or whose program is broken. */
function garbage(random: Random): Buffer {
  switch (random.below(7)) {
    case 0:
      return message('p', [bytesOf(random, sizeOf(random))]);
    case 1:
      return initial(random, random.pick(MECHANISMS), Buffer.from(random.pick(FIRSTS)));
    case 2:
      return initial(random, 'SCRAM-SHA-256', bytesOf(random, sizeOf(random)));
    case 3:
      return message('p', [Buffer.from(`c=biws,r=${'x'.repeat(sizeOf(random))},p=AAAA`)]);
    case 4:
      return message('p', [`md5${bytesOf(random, 16).toString('hex')}`]);
    case 5:
      // A length of the header that belongs to another message.
      return message('p', [bytesOf(random, 20)], random.pick([0, 3, 4, 5, 26, 1 << 16, -1]));
    default:
      return message(String.fromCharCode(1 + random.below(255)), [bytesOf(random, 9)]);
  }
}

/** A good exchange up to the proof, and a proof with one byte of the message changed. */
async function spoiltProof(client: WireClient, random: Random): Promise<void> {
  const scram = new ScramClient('app');
  const first = Buffer.from(scram.first());
  client.send(message('p', ['SCRAM-SHA-256', int32(first.length), first]));
  const { type, body } = await client.next();
  if (type !== 'R' || body.readInt32BE(0) !== 11) return;
  const final = Buffer.from(scram.final(body.toString('utf8', 4)));
  // The last character but one has bits that base64 does not use.
  const at = random.below(final.length - 2);
  final[at] = final[at]! ^ (1 << random.below(7));
  client.send(message('p', [final]));
}

for (const authType of ['scram-sha-256', 'md5', 'plain']) {
  test(`ten thousand broken messages crash nothing and let nobody in: auth_type = ${authType}`, async (t) => {
    const seed = Number(process.env['SEED'] ?? randomInt(1 << 30));
    t.diagnostic(`SEED=${seed}`);
    const random = new Random(seed);
    const postgres = await startPostgres();
    t.after(() => postgres.dispose());
    const fleet = await startPgfleet({
      postgres,
      size: 2,
      settings: { auth_type: authType, log_connections: 0, log_disconnections: 0 },
    });
    fleet.allowLog(/ERROR /, /FATAL /);
    t.after(() => fleet.stop());
    const workers = fleet.workers();
    let sent = 0;
    const attack = async (): Promise<void> => {
      while (sent < MESSAGES) {
        const client = await WireClient.connect(fleet);
        client.send(startup({ user: random.pick(['app', 'app_md5', 'nobody']), database: 'app' }));
        await client.next();
        if (authType === 'scram-sha-256' && random.below(4) === 0) {
          sent += 2;
          await spoiltProof(client, random);
        } else {
          for (let n = random.below(4); n >= 0; n--, sent++) client.send(garbage(random));
        }
        // What is cut short would wait for its rest until client_login_timeout.
        client.socket.end();
        const types = (await client.untilClose()).map(({ type, body }) =>
          type === 'R' ? `R${body.readInt32BE(0)}` : type,
        );
        client.destroy();
        assert.ok(!types.some((type) => 'R0 R12 K Z'.includes(type)), types.join(' '));
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, attack));
    assert.deepEqual(fleet.workers(), workers);
    const good = await WireClient.login(fleet);
    await good.query('SELECT 1');
    await good.end();
  });
}
