import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Pool } from '../../../src/pool/pool.ts';
import { type ServerConnection, ServerState } from '../../../src/server/server-connection.ts';
import type { List } from '../../../src/util/list.ts';
import * as says from '../../support/server-messages.ts';
import { pick, randomFrom } from '../util/random.ts';
import { type Backend, FakeClient, type World, world } from './support.ts';

const STEPS = 4000;

const LISTS: readonly (readonly [keyof Pool, readonly ServerState[]])[] = [
  ['opening', [ServerState.login]],
  ['idle', [ServerState.idle]],
  ['linked', [ServerState.active]],
  ['tested', [ServerState.tested]],
  ['used', [ServerState.used]],
  ['held', [ServerState.held]],
  ['closing', [ServerState.closing]],
];

/** Clients, servers and time doing what they may, in an order that the seed decides. */
class Walk {
  readonly given: World;
  readonly random: () => number;
  readonly clients: FakeClient[] = [];
  readonly pools: Pool[];
  steps = 0;
  /** Clients that have ended for a reason of the pooler's. */
  refused = 0;
  served = 0;

  constructor(given: World, pools: Pool[], seed: number) {
    this.given = given;
    this.pools = pools;
    this.random = randomFrom(seed);
  }

  get backends(): Backend[] {
    return [...this.given.openers.values()].flatMap((opener) => opener.backends).filter(isOpen);
  }

  step(): void {
    this.steps++;
    const { random } = this;
    switch (Math.floor(random() * 13)) {
      case 0:
      case 1:
        if (this.clients.length < 30) this.#come();
        break;
      case 2:
        this.#any(this.clients, (client) => this.#go(client));
        break;
      case 3:
      case 4:
        this.#any(this.clients.filter(isIdle), (client) => this.#ask(client));
        break;
      case 5:
      case 6:
      case 7:
        this.#any(this.backends.filter(isRunning), (backend) =>
          backend.ready(random() < 0.8 ? 'I' : 'T'),
        );
        break;
      case 8:
        this.#any(this.backends.filter(isLoggingIn), (backend) => {
          if (backend.socket.connecting) backend.connect();
          else if (random() < 0.8) backend.logIn();
          else backend.refuse('53300', 'too many connections');
        });
        break;
      case 9:
        this.#any(this.backends.filter(isTold), (backend) => backend.end());
        break;
      case 10:
        if (random() < 0.1) this.#any(this.backends, (backend) => backend.break());
        break;
      case 11:
        this.given.time.pass(Math.floor(random() * 2000));
        this.given.pools.tick(this.given.time.now);
        break;
      default:
        this.#rarely();
    }
  }

  /** Everybody goes, every server answers and closes; what is left then was lost. */
  settle(): void {
    this.given.pools.resume();
    for (const client of [...this.clients]) this.#go(client);
    for (const pool of this.pools) {
      for (const server of pool.held) {
        server.cancelsInFlight = 0;
        pool.onCancelsGone(server);
      }
    }
    this.given.pools.pause();
    for (let round = 0; round < 5; round++) {
      for (const backend of this.backends) {
        if (isRunning(backend)) backend.ready();
        if (isTold(backend)) backend.end();
      }
    }
  }

  #rarely(): void {
    const roll = this.random();
    if (roll < 0.1) this.given.pools.pause();
    else if (roll < 0.4) this.given.pools.resume();
    else if (roll < 0.7) {
      // A cancel request for a linked server sets out, or one for a held server has arrived.
      const server = this.#server(['linked']);
      if (server !== null) server.cancelsInFlight++;
    } else if (roll < 0.95) {
      const server = this.#server(['held', 'linked', 'closing']);
      if (server !== null && server.cancelsInFlight > 0) {
        server.cancelsInFlight--;
        (server.owner as Pool).onCancelsGone(server);
      }
    } else {
      const server = this.#server(['idle', 'linked', 'used']);
      if (server !== null) server.isCloseNeeded = true;
    }
  }

  #server(lists: readonly (keyof Pool)[]): ServerConnection | null {
    const all = this.pools.flatMap((pool) =>
      lists.flatMap((name) => [...(pool[name] as List<ServerConnection>)]),
    );
    return all.length === 0 ? null : pick(this.random, all);
  }

  #any<T>(items: readonly T[], act: (item: T) => void): void {
    if (items.length > 0) act(pick(this.random, items));
  }

  #come(): void {
    const client = new FakeClient(pick(this.random, this.pools));
    client.queryWaitTimeout = pick(this.random, [0, 3, 60]);
    const end = (what: string) => {
      client.events.push(what);
      client.pool.clients--;
      this.clients.splice(this.clients.indexOf(client), 1);
    };
    client.onServerLost = (text) => {
      client.server = null;
      client.pool.leave(client);
      end(`lost: ${text}`);
    };
    client.refuse = (_sqlstate, text) => {
      client.pool.leave(client);
      this.refused++;
      end(`refused: ${text}`);
    };
    client.onServer = () => {
      assert.ok(client.server !== null && client.server.client === client);
      this.served++;
      client.send();
    };
    this.clients.push(client);
    if (client.pool.welcome !== null) return;
    client.isWelcomed = false;
    client.pool.enqueue(client);
  }

  #go(client: FakeClient): void {
    client.leave();
    this.clients.splice(this.clients.indexOf(client), 1);
  }

  #ask(client: FakeClient): void {
    if (client.server !== null) {
      client.send();
      return;
    }
    const first = client.pool.waiting.first;
    if (!client.ask()) return;
    assert.equal(first, null, 'a newcomer overtook a client that waits');
    this.served++;
    client.send();
  }

  check(): void {
    for (const pool of this.pools) {
      assert.ok(pool.opening.size <= 4, 'a crowd of logins at once');
      assert.ok(pool.total <= pool.plan.size + pool.plan.reserveSize, 'above the pool size');
      for (const [name, states] of LISTS) {
        for (const server of pool[name] as List<ServerConnection>) {
          assert.ok(states.includes(server.state), `a server of state ${server.state} in ${name}`);
          assert.equal(server.client !== null, name === 'linked', `a client in ${name}`);
        }
      }
      for (const server of pool.linked) {
        const client = server.client as FakeClient;
        assert.equal(client.server, server);
        assert.equal(client.list, null, 'a client waits with a server');
      }
      for (const client of pool.waiting) {
        assert.equal(client.server, null);
        assert.ok(this.clients.includes(client as FakeClient), 'a client that has gone waits');
      }
      if (pool.waiting.size > 0 && !pool.isPaused && pool.welcome !== null) {
        assert.equal(pool.idle.size, 0, 'a client waits beside an idle server');
      }
    }
    for (const database of this.given.pools.databases) {
      const held = this.pools
        .filter((pool) => pool.database === database)
        .reduce((sum, pool) => sum + pool.total, 0);
      assert.equal(database.budget.held, held, 'slots of a database are miscounted');
      assert.ok(held <= database.budget.max, `above max_db_connections of ${database.name}`);
    }
    for (const user of new Set(this.pools.map((pool) => pool.user))) {
      const pools = this.pools.filter((pool) => pool.user === user);
      const held = pools.reduce((sum, pool) => sum + pool.total, 0);
      assert.equal(pools[0]!.userBudget.held, held, 'slots of a user are miscounted');
      assert.ok(held <= pools[0]!.userBudget.max, `above max_user_connections of ${user}`);
    }
  }
}

const isOpen = ({ server }: Backend) => server.state !== ServerState.closed;
const isLoggingIn = ({ server }: Backend) => server.state === ServerState.login;
const isTold = ({ server }: Backend) => server.state === ServerState.closing;
const isRunning = ({ server }: Backend) =>
  (server.state === ServerState.active || server.state === ServerState.tested) &&
  (server.requests.size > 0 || server.isRunningOwn);
const isIdle = (client: FakeClient) =>
  client.list === null &&
  client.isWelcomed &&
  (client.server === null || (client.server.isReady && client.server.requests.size === 0));

const SETTINGS: readonly string[] = [
  'default_pool_size = 3\nmax_db_connections = 4\nmax_user_connections = 5',
  'default_pool_size = 2\nreserve_pool_size = 2\nreserve_pool_timeout = 1\nmax_db_connections = 5',
  'pool_mode = session\ndefault_pool_size = 3\nmax_user_connections = 4\nmin_pool_size = 2',
  'default_pool_size = 4\nserver_check_query = <empty>\nserver_check_delay = 1\nmax_db_connections = 6',
  'default_pool_size = 3\nserver_lifetime = 5\nserver_idle_timeout = 3\nmax_db_connections = 3',
  'server_round_robin = 1\nserver_check_query = <empty>\nserver_check_delay = 0\ndefault_pool_size = 2',
];

for (const [number, settings] of SETTINGS.entries()) {
  test(`limits, lists and queues hold through ${STEPS} random steps (${settings.replaceAll('\n', ', ')})`, (t) => {
    const seed = 20_260 + number;
    const given = world(
      t,
      `server_login_retry = 1\nserver_connect_timeout = 8\n${settings}`,
      'd = host=h\ne = host=h',
    );
    const pools = [
      given.pool('d', 'a'),
      given.pool('d', 'b'),
      given.pool('d', 'c'),
      given.pool('e', 'a'),
      given.pool('e', 'b'),
    ];
    const walk = new Walk(given, pools, seed);
    try {
      for (let step = 0; step < STEPS; step++) {
        walk.step();
        walk.check();
      }
      walk.settle();
      walk.check();
      assert.equal(given.pools.connections, 0, 'a slot was lost');
      assert.ok(pools.every((pool) => pool.clients === 0 && pool.waiting.size === 0));
    } catch (error) {
      throw new Error(`seed ${seed}, step ${walk.steps}`, { cause: error });
    }
    assert.deepEqual(
      given.lines.filter((line) => line.includes('InvariantError')),
      [],
    );
    assert.ok(walk.served > 40, `only ${walk.served} served`);
    assert.ok(walk.refused > 0);
  });
}

test('every client that waits is served in the end, when servers answer and nobody leaves', (t) => {
  const given = world(
    t,
    'default_pool_size = 3\nmax_db_connections = 4\nmax_user_connections = 3\nserver_login_retry = 1\nquery_wait_notify = 0',
  );
  const pools = [given.pool('d', 'a'), given.pool('d', 'b'), given.pool('d', 'c')];
  const clients = pools.flatMap((pool) => Array.from({ length: 20 }, () => new FakeClient(pool)));
  for (const client of clients) {
    client.act = () => client.send();
    client.ask();
  }
  const random = randomFrom(7);
  const opener = given.opener();
  const isServed = () => clients.every(({ events }) => events.join() === 'server,free');
  for (let step = 0; step < 5000 && !isServed(); step++) {
    const backend = pick(random, opener.backends);
    if (isTold(backend)) backend.end();
    else if (isLoggingIn(backend)) backend.logIn();
    else if (isRunning(backend)) backend.ready();
    if (step % 50 === 0) {
      given.time.pass(333);
      given.pools.tick(given.time.now);
    }
    // A server that ends by itself is one more thing that must lose nobody.
    if (step === 60) backend.say(says.errorResponse('57P01', 'shutting down', 'FATAL'));
  }
  const left = clients.filter(({ events }) => events.at(-1) !== 'free');
  assert.deepEqual(
    left.map(({ events }) => events),
    [],
  );
});
