import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  bind,
  COPY_DONE,
  close,
  copyData,
  execute,
  FLUSH,
  parse,
  query,
  SYNC,
  textRows,
  typesOf,
} from '../support/messages.ts';
import { startPgfleet, type TestPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { until } from '../support/until.ts';
import { WireClient } from '../support/wire-client.ts';

/** Things that the protocol allows and that few drivers do, on a fleet with one server. */
test('clients that use their right to be odd', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  const settings = { default_pool_size: 1, max_prepared_statements: 2, query_wait_timeout: 5 };
  const fleet = await startPgfleet({ postgres, settings });
  t.after(() => fleet.stop());
  const step = (name: string, action: (fleet: TestPgfleet) => Promise<void>) =>
    t.test(name, () => action(fleet));

  await step('a COPY that failed gives its server back, CopyDone or not', freesFailedCopy);
  await step('late COPY data is dropped, and the next COPY is whole', dropsLateData);
  await step('a Flush with nothing before it takes no server', flushesNothing);
  await step('a statement prepared behind DEALLOCATE ALL in a pipeline stays', keepsLaterParse);
  await step('what failed behind DEALLOCATE ALL in a pipeline is gone', forgetsFailedParse);
});

async function freesFailedCopy(fleet: TestPgfleet): Promise<void> {
  const bad = copyData(Buffer.from('no number\n'));
  const copy = 'CREATE TEMP TABLE numbers (n int) ON COMMIT DROP; COPY numbers FROM STDIN';
  const client = await WireClient.login(fleet);

  client.send(query(copy));
  await client.until('G');
  client.send(bad);
  // The server reads on to the next message before it looks at the line.
  client.send(copyData(Buffer.from('\\.\n')));
  assert.equal(typesOf(await client.untilReady()), 'E Z:I');
  await isUsable(fleet);
  assert.equal(typesOf(await client.query('SELECT 1')), 'T D C Z:I');
  await isUsable(fleet);

  await client.query('CREATE TABLE odd_numbers (n int)');
  client.send(parse('', 'COPY odd_numbers FROM STDIN'), bind(), execute(), FLUSH);
  await client.until('G');
  client.send(bad, copyData(Buffer.from('\\.\n')));
  await client.until('E');
  client.send(SYNC);
  assert.equal(typesOf(await client.untilReady()), 'Z:I');
  await isUsable(fleet);
  await client.end();
}

async function dropsLateData(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  client.send(query('COPY odd_numbers FROM STDIN'));
  await client.until('G');
  client.send(copyData(Buffer.from('no number\n')), copyData(Buffer.from('\\.\n')));
  assert.equal(typesOf(await client.untilReady()), 'E Z:I');
  client.send(copyData(Buffer.from('1\n')), COPY_DONE);
  client.send(query('COPY odd_numbers FROM STDIN'), copyData(Buffer.from('2\n')), COPY_DONE);
  assert.equal(typesOf(await client.untilReady()), 'G C Z:I');
  const rows = textRows(await client.query('SELECT n FROM odd_numbers'));
  assert.deepEqual(rows, [['2']]);
  await client.end();
}

async function flushesNothing(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  client.send(FLUSH);
  await until('it was read', async () => {
    const row = (await fleet.console('SHOW CLIENTS')).find(({ database }) => database === 'app');
    return row !== undefined && row['link'] === '';
  });
  await isUsable(fleet);
  // In a transaction it is no request either, and what follows it is answered.
  client.send(query('BEGIN'), FLUSH, query('COMMIT'));
  assert.equal(typesOf(await client.untilReady()), 'C Z:T');
  assert.equal(typesOf(await client.untilReady()), 'C Z:I');
  await client.end();
}

async function keepsLaterParse(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  const run = [bind({ statement: 'kept' }), execute(), SYNC];
  client.send(query('DEALLOCATE ALL'), parse('kept', 'SELECT 41'), ...run);
  assert.equal(typesOf(await client.untilReady()), 'C Z:I');
  assert.equal(typesOf(await client.untilReady()), '1 2 D C Z:I');
  client.send(...run);
  assert.equal(typesOf(await client.untilReady()), '2 D C Z:I');

  const other = await WireClient.login(fleet);
  other.send(parse('', 'DISCARD ALL'), bind(), execute(), SYNC);
  other.send(parse('mine', 'SELECT 41'), SYNC);
  await other.untilReady();
  assert.equal(typesOf(await other.untilReady()), '1 Z:I');
  for (const { user, name } of [
    { user: client, name: 'kept' },
    { user: other, name: 'mine' },
  ]) {
    user.send(bind({ statement: name }), execute(), close('S', name), SYNC);
    assert.equal(typesOf(await user.untilReady()), '2 D C 3 Z:I', name);
    await user.end();
  }
}

async function forgetsFailedParse(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  client.send(query('DEALLOCATE ALL'), parse('again', 'SELECT nothing'), SYNC);
  assert.equal(typesOf(await client.untilReady()), 'C Z:I');
  assert.equal(typesOf(await client.untilReady()), 'E Z:I');
  client.send(parse('again', 'SELECT 42'), bind({ statement: 'again' }), execute(), SYNC);
  assert.equal(typesOf(await client.untilReady()), '1 2 D C Z:I');
  await client.end();
}

/** Another client gets the one server. */
async function isUsable(fleet: TestPgfleet): Promise<void> {
  const client = await WireClient.login(fleet);
  assert.equal(typesOf(await client.query('SELECT 1', 3_000)), 'T D C Z:I');
  await client.end();
}
