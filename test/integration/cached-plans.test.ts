import assert from 'node:assert/strict';
import pg from 'pg';
import postgres from 'postgres';
import { ask, linesOf } from '../support/dialogue.ts';
import { onEveryFleet, type Place, type Rules } from '../support/grid.ts';
import {
  bind,
  describe,
  execute,
  FLUSH,
  parse,
  query,
  SYNC,
  textRows,
} from '../support/messages.ts';
import { WireClient } from '../support/wire-client.ts';

/**
 * Tables that change under statements which servers keep prepared for clients that share them.
 * PostgreSQL: "cached plan must not change result type".
 */

const STALE = 'E(ERROR 0A000 cached plan must not change result type)';
const ROWS = [describe('P'), execute()];
/** What a driver sends to run the statement `a`. */
const RUN = [bind({ statement: 'a' }), ...ROWS];

const RULES: Rules = {
  'a client that runs its statement after DDL gets the new rows and no error': async (place) => {
    await inTable(place, async (client, server) => {
      await server.query('ALTER TABLE plans ADD COLUMN b text DEFAULT $$new$$');
      const answer = await ask(client, [...RUN, SYNC]);
      assert.equal(linesOf(answer), '2 T D C Z:I');
      assert.deepEqual(textRows(answer), [['1', 'new']]);
      await server.query('ALTER TABLE plans ALTER b DROP DEFAULT, ALTER b TYPE int USING 7');
      assert.deepEqual(textRows(await ask(client, [...RUN, SYNC])), [['1', '7']]);
      assert.deepEqual(textRows(await ask(client, [...RUN, SYNC])), [['1', '7']]);
    });
    assert.match(place.fleet.log(), /the result of PGBOUNCER_\d+ has changed .* run again/);
  },

  'a statement that another client has deallocated unseen is prepared anew': async (place) => {
    await inTable(place, async (client) => {
      const [other] = await entered(place, 1);
      const byName = `FOR s IN SELECT name FROM pg_prepared_statements LOOP
        EXECUTE format('DEALLOCATE %I', s); END LOOP`;
      for (const body of ["EXECUTE 'DEALLOCATE ALL'", byName]) {
        await ask(other!, [query(`DO $$ DECLARE s text; BEGIN ${body}; END $$`)]);
        assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:I', body);
      }
      await other!.end();
    });
  },

  'all clients of all servers are spared the error, each with its own name': async (place) => {
    await inTable(place, async (first, server) => {
      const clients = [first, ...(await entered(place, 5))];
      for (const client of clients.slice(1)) await ask(client, [parse('b', SELECT), SYNC]);
      const runs = clients.map((client) => {
        const statement = client === first ? 'a' : 'b';
        return () => ask(client, [bind({ statement }), ...ROWS, SYNC]);
      });
      for (const column of ['x', 'y', 'z']) {
        // At once, so that several servers have the statement.
        await Promise.all(runs.map((run) => run()));
        await server.query(`ALTER TABLE plans ADD COLUMN ${column} int`);
        for (const answer of await Promise.all(runs.map((run) => run()))) {
          assert.equal(linesOf(answer), '2 T D C Z:I');
        }
      }
      for (const client of clients.slice(1)) await client.end();
    });
  },

  'Describe of the statement is answered as after a new Parse': async (place) => {
    await inTable(place, async (client, server) => {
      assert.equal(linesOf(await ask(client, [describe('S', 'a'), SYNC])), 't T Z:I');
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      const answer = await ask(client, [describe('S', 'a'), SYNC]);
      assert.equal(linesOf(answer), 't T Z:I');
      assert.equal(answer.find(({ type }) => type === 'T')!.body.readInt16BE(0), 2);
      await server.query('ALTER TABLE plans ADD COLUMN c int');
      assert.equal(
        linesOf(await ask(client, [describe('S', 'a'), ...RUN, SYNC])),
        't T 2 T D C Z:I',
      );
    });
  },

  'a group whose Parse the pooler answered, and one with a Flush, are run again': async (place) => {
    await inTable(place, async (client, server) => {
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      const again = [parse('again', SELECT), bind({ statement: 'again' }), ...ROWS, SYNC];
      assert.equal(linesOf(await ask(client, again)), '1 2 T D C Z:I');
      await server.query('ALTER TABLE plans ADD COLUMN c int');
      assert.equal(linesOf(await ask(client, [...RUN, FLUSH, SYNC])), '2 T D C Z:I');
    });
  },

  'what writes is run once': async (place) => {
    await inTable(place, async (client, server) => {
      const text = 'INSERT INTO plans (id) VALUES ($1) RETURNING *';
      const insert = (id: string): Buffer[] => [
        bind({ statement: 'insert', values: [id] }),
        ...ROWS,
        SYNC,
      ];
      await ask(client, [parse('insert', text, [23]), ...insert('2')]);
      await server.query('ALTER TABLE plans ADD COLUMN b int DEFAULT 5');
      assert.deepEqual(textRows(await ask(client, insert('3'))), [['3', '5']]);
      const { rows } = await server.query('SELECT id FROM plans ORDER BY id');
      assert.deepEqual(rows, [{ id: 1 }, { id: 2 }, { id: 3 }]);
    });
  },

  'in a transaction the error is passed on, and the statement is good behind it': async (place) => {
    await inTable(place, async (client, server) => {
      await client.query('BEGIN');
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), `${STALE} Z:E`);
      await client.query('ROLLBACK');
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:I');
    });
    assert.match(place.fleet.log(), /has changed since it was prepared: the error is passed on/);
  },

  'behind a savepoint the statement is prepared anew in the same transaction': async (place) => {
    await inTable(place, async (client, server) => {
      await client.query('BEGIN; SAVEPOINT before');
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), `${STALE} Z:E`);
      await client.query('ROLLBACK TO before');
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:T');
      await client.query('COMMIT');
    });
  },

  'when something was executed before in the group, it is passed on': async (place) => {
    await inTable(place, async (client, server) => {
      await ask(client, [parse('insert', 'INSERT INTO plans VALUES (2)'), SYNC]);
      await ask(client, [parse('other', 'SELECT 1'), SYNC]);
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      const first = [bind({ statement: 'insert' }), execute()];
      assert.equal(linesOf(await ask(client, [...first, ...RUN, SYNC])), `2 C ${STALE} Z:I`);
      assert.equal(linesOf(await ask(client, [...first, ...RUN, SYNC])), '2 C 2 T D D C Z:I');
      const { rows } = await server.query('SELECT id FROM plans ORDER BY id');
      assert.deepEqual(rows, [{ id: 1 }, { id: 2 }], 'the first insert was rolled back');
    });
  },

  'when another group was sent behind it, it is passed on, and that group has the new plan': async (
    place,
  ) => {
    await inTable(place, async (client, server) => {
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      const both = [...RUN, SYNC, query('SELECT 1')];
      assert.equal(linesOf(await ask(client, both, 2)), `${STALE} Z:I T D C Z:I`);
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:I');
    });
  },

  'when the group is not complete, or is long, it is passed on': async (place) => {
    await inTable(place, async (client, server) => {
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      client.send(...RUN, FLUSH);
      assert.equal(linesOf(await client.until('E')), STALE);
      assert.equal(linesOf(await ask(client, [SYNC])), 'Z:I');
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:I');

      await server.query('ALTER TABLE plans ADD COLUMN c int');
      const many = Array.from({ length: 400 }, (_, i) => bind({ statement: 'a', portal: `p${i}` }));
      assert.equal(linesOf(await ask(client, [...many, SYNC])), `${STALE} Z:I`);
      assert.equal(linesOf(await ask(client, [...RUN, SYNC])), '2 T D C Z:I');
    });
  },

  'one who would read new rows by an old description gets the error': async (place) => {
    await inTable(place, async (client, server) => {
      await ask(client, [describe('S', 'a'), SYNC]);
      const bare = [bind({ statement: 'a' }), execute(), SYNC];
      assert.equal(linesOf(await ask(client, bare)), '2 D C Z:I');
      await server.query('ALTER TABLE plans ALTER COLUMN id TYPE text');
      assert.equal(linesOf(await ask(client, bare)), `${STALE} Z:I`);
      assert.equal(linesOf(await ask(client, bare)), '2 D C Z:I');
    });
  },

  'a client that never asked for a description gets the rows without one': async (place) => {
    await inTable(place, async (client, server) => {
      const bare = [bind({ statement: 'a' }), execute(), SYNC];
      assert.equal(linesOf(await ask(client, bare)), '2 D C Z:I');
      await server.query('ALTER TABLE plans ADD COLUMN b int DEFAULT 2');
      assert.deepEqual(textRows(await ask(client, bare)), [['1', '2']]);
    });
  },

  'a statement that has become invalid fails with the reason': async (place) => {
    await inTable(place, async (client, server) => {
      await ask(client, [parse('named', 'SELECT id, * FROM plans'), SYNC]);
      const run = [bind({ statement: 'named' }), ...ROWS, SYNC];
      assert.equal(linesOf(await ask(client, run)), '2 T D C Z:I');
      await server.query('ALTER TABLE plans RENAME COLUMN id TO other');
      const missing = 'E(ERROR 42703 column "id" does not exist) Z:I';
      assert.equal(linesOf(await ask(client, run)), missing);
      await server.query('ALTER TABLE plans RENAME COLUMN other TO id');
      assert.equal(linesOf(await ask(client, run)), '2 T D C Z:I');
    });
  },

  'the counters tell how often a plan was stale, and how often no client noticed': async (
    place,
  ) => {
    await inTable(place, async (client, server) => {
      const before = await counters(place);
      await server.query('ALTER TABLE plans ADD COLUMN b int');
      await ask(client, [...RUN, SYNC]);
      await client.query('BEGIN');
      await server.query('ALTER TABLE plans ADD COLUMN c int');
      await ask(client, [...RUN, SYNC]);
      await client.query('ROLLBACK');
      const after = await counters(place);
      assert.equal(after.refused - before.refused, 2);
      assert.equal(after.hidden - before.hidden, 1);
    });
  },

  'pg: clients with named queries see no error while a table changes': async (place) => {
    await inTable(place, async (_, server) => {
      const clients = await Promise.all(Array.from({ length: 6 }, () => place.fleet.client()));
      const named = { name: 'plans', text: `${SELECT} WHERE id = $1`, values: [1] };
      await whileTableChanges(server, async () => {
        const answers = await Promise.all(
          clients.map((client) => client.query<pg.QueryResultRow>(named)),
        );
        for (const { rows } of answers) assert.equal(rows[0]!['id'], 1);
      });
      for (const client of clients) await client.end();
    });
  },

  'postgres.js: its queries see no error and no row of another shape': async (place) => {
    await inTable(place, async (_, server) => {
      const sql = postgres(place.fleet.url(), { onnotice: () => undefined, max: 4 });
      let last = 0;
      await whileTableChanges(server, async (columns) => {
        // One at a time: the driver sends a pipeline otherwise, of which only it can run a part again.
        const [row] = await sql.unsafe(`${SELECT} WHERE id = $1`, [1], { prepare: true });
        assert.equal(row!['id'], 1);
        last = Object.keys(row!).length;
        assert.ok(last >= 1 && last <= columns + 1, `${last} columns`);
      });
      const [row] = await sql.unsafe(`${SELECT} WHERE id = $1`, [1], { prepare: true });
      const {
        rows: [count],
      } = await server.query<{ n: string }>(
        `SELECT count(*) AS n FROM information_schema.columns WHERE table_name = 'plans'`,
      );
      assert.equal(Object.keys(row!).length, Number(count!.n));
      await sql.end({ timeout: 5 });
    });
  },
};

const SELECT = 'SELECT * FROM plans';

onEveryFleet('statements whose table changes', RULES, {
  layouts: [
    { size: 1, mode: 'transaction' },
    { size: 2, mode: 'transaction' },
  ],
});

/** Gives a client that has run the statement `a`, `SELECT * FROM plans`, which is (id int), one row. */
async function inTable(
  place: Place,
  run: (client: WireClient, server: pg.Client) => Promise<void>,
): Promise<void> {
  const server = new pg.Client({ connectionString: place.postgres.url('app') });
  await server.connect();
  await server.query('DROP TABLE IF EXISTS plans; CREATE TABLE plans AS SELECT 1 AS id');
  await server.query('GRANT ALL ON plans TO public');
  const client = await WireClient.login(place.fleet);
  await ask(client, [parse('a', SELECT), bind({ statement: 'a' }), execute(), SYNC]);
  await run(client, server);
  await client.end();
  await server.end();
}

function entered({ fleet }: Place, count: number): Promise<WireClient[]> {
  return Promise.all(Array.from({ length: count }, () => WireClient.login(fleet)));
}

/** Adds columns to the table, and between and beside that runs `step`, told how many there are by then. */
async function whileTableChanges(
  server: pg.Client,
  step: (columns: number) => Promise<void>,
): Promise<void> {
  for (let round = 1; round <= 8; round++) {
    const change = server.query(`ALTER TABLE plans ADD COLUMN c${round} int DEFAULT ${round}`);
    await step(round);
    await change;
    await step(round);
    await step(round);
  }
}

async function counters({ fleet }: Place): Promise<{ refused: number; hidden: number }> {
  const rows = await fleet.console('SHOW STALE_PLANS');
  const row = rows.find(({ database }) => database === 'app')!;
  return { refused: Number(row['refused']), hidden: Number(row['hidden']) };
}
