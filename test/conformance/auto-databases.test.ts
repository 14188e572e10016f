/** Databases that are made from the entry `*` when a client asks for them. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { crowded, ending, fetchValue } from '../support/crowd.ts';
import { startup } from '../support/messages.ts';
import { startPostgres, type TestPostgres } from '../support/postgres.ts';
import { rule } from '../support/rule.ts';

const CURRENT = 'SELECT current_database()';

let postgres: TestPostgres;

before(async () => {
  postgres = await startPostgres();
  await postgres.query('CREATE DATABASE "Odd name"');
});

describe('auto-databases', { concurrency: 4 }, () => {
  rule(
    'an entry * stands for every database that has no entry of its own',
    () => ({
      postgres,
      databases: { app: 'dbname=postgres', '*': '' },
      settings: { default_pool_size: 1 },
    }),
    crowded(async (crowd) => {
      // An entry of its own wins, and each of the others has a pool of its own.
      const clients = [];
      for (const database of ['app', 'postgres', 'template1', 'Odd name']) {
        clients.push(await crowd.holder({ database }));
      }
      const names = [];
      for (const client of clients) names.push(await fetchValue(client, CURRENT));
      assert.deepEqual(names, ['postgres', 'postgres', 'template1', 'Odd name']);
      assert.match(crowd.pooler.log(), / registered new auto-database: /);
    }),
  );

  rule(
    'SHOW DATABASES lists an auto-database once it has been asked for',
    () => ({ postgres, databases: { app: '', '*': 'pool_size=7' } }),
    crowded(async (crowd) => {
      const names = async () =>
        (await crowd.pooler.console('SHOW DATABASES')).map(({ name }) => name).sort();
      assert.deepEqual(await names(), ['app', 'pgbouncer']);
      await crowd.login({ database: 'postgres' });
      assert.deepEqual(await names(), ['app', 'pgbouncer', 'postgres']);
      const rows = await crowd.pooler.console('SHOW DATABASES');
      assert.equal(rows.find(({ name }) => name === 'postgres')!['pool_size'], 7);
    }),
  );

  rule(
    'an entry * with dbname= leads every name to that database',
    () => ({ postgres, databases: { '*': 'dbname=app user=app_trust pool_size=1' } }),
    crowded(async (crowd) => {
      for (const database of ['one', 'two']) {
        const client = await crowd.holder({ database });
        assert.equal(await fetchValue(client, CURRENT), 'app');
        assert.equal(await fetchValue(client, 'SELECT session_user'), 'app_trust');
      }
    }),
  );

  rule(
    'what the server says of a database that it does not have is told to the client',
    () => ({ postgres, databases: { '*': '' } }),
    crowded(async (crowd) => {
      const client = await crowd.connect();
      client.send(startup({ user: 'app', database: 'nowhere' }));
      assert.equal(await ending(client), 'FATAL 3D000: database "nowhere" does not exist');
    }),
    { since: '1.22' },
  );

  rule(
    'without an entry * a name that has none is refused, but only who it is has been shown',
    () => ({ postgres, databases: { app: '' }, settings: { auth_type: 'plain' } }),
    crowded(async (crowd) => {
      for (const [password, text] of [
        ['app', 'FATAL 08P01: no such database: nowhere'],
        ['wrong', 'FATAL 08P01: password authentication failed'],
      ] as const) {
        const client = await crowd.connect();
        const refusal = client.login({ database: 'nowhere', password });
        await assert.rejects(refusal, { message: text });
      }
    }),
    { since: '1.22' },
  );
});

test('the server is ended', () => postgres.dispose());
