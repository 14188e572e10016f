import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ClientStatements } from '../../../src/prepared/client-statements.ts';
import { StatementRegistry } from '../../../src/prepared/registry.ts';
import { Presence, ServerStatements } from '../../../src/prepared/server-statements.ts';
import { Progress } from './builders.ts';

const KEY = 'select 1\0\0\0';

function ids(server: ServerStatements): number[] {
  return [...server].map(({ id }) => id);
}

test('the same text and types are one statement, anything else is another', () => {
  const registry = new StatementRegistry();
  const first = registry.intern(KEY);
  assert.equal(registry.intern(KEY), first);
  assert.equal(first.serverName, 'PGBOUNCER_1');
  assert.deepEqual(first.serverNameBytes, Buffer.from('PGBOUNCER_1\0'));
  assert.equal(registry.intern('select 1\0\0\x01\0\0\0\x17').id, 2);
  assert.equal(registry.intern('SELECT 1\0\0\0').id, 3);
});

test('a statement is forgotten when no client or server knows it, and made again with a new id', () => {
  const registry = new StatementRegistry();
  const client = new ClientStatements(registry);
  const server = new ServerStatements(registry, new Progress());
  const first = registry.intern(KEY);
  client.set('a', first);
  client.set('b', first);
  server.add(first);
  assert.equal(first.refs, 3);
  client.delete('a');
  client.delete('b');
  assert.equal(registry.intern(KEY), first);
  server.clear();
  assert.equal(first.refs, 0);
  assert.equal(registry.size, 0);
  assert.equal(registry.intern(KEY).id, 2);
});

test('a statement that comes back takes its key again only when the key is free', () => {
  const registry = new StatementRegistry();
  const first = registry.intern(KEY);
  registry.retain(first);
  registry.release(first);
  registry.retain(first);
  assert.equal(registry.intern(KEY), first);
  registry.release(first);
  const second = registry.intern(KEY);
  registry.retain(second);
  registry.retain(first);
  assert.equal(registry.intern(KEY), second);
  registry.release(first);
  assert.equal(registry.intern(KEY), second);
  registry.release(second);
  assert.equal(registry.size, 0);
});

test('a client that leaves gives up all its names', () => {
  const registry = new StatementRegistry();
  const client = new ClientStatements(registry);
  for (let i = 0; i < 1000; i++) client.set(`s${i}`, registry.intern(`select ${i % 10}\0\0\0`));
  assert.equal(client.size, 1000);
  assert.equal(registry.size, 10);
  assert.equal(client.delete('none'), null);
  client.clear();
  assert.equal(client.size, 0);
  assert.equal(registry.size, 0);
});

test('a server keeps its statements in the order of use and gives up the oldest', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const [a, b, c] = ['a', 'b', 'c'].map((key) => registry.intern(key));
  server.add(a!);
  server.add(b!);
  server.add(c!);
  assert.deepEqual(ids(server), [1, 2, 3]);
  assert.equal(server.use(a!), Presence.present);
  assert.deepEqual(ids(server), [2, 3, 1]);
  assert.equal(server.presence(b!), Presence.present);
  assert.deepEqual(ids(server), [2, 3, 1], 'looking is not using');
  server.add(b!);
  assert.deepEqual(ids(server), [3, 1, 2], 'a second Parse is a use and no second entry');
  assert.equal(server.evictOver(3), null);
  assert.equal(server.evictOver(2), c);
  assert.equal(server.evictOver(1), a);
  assert.equal(server.evictOver(1), null);
  assert.deepEqual(ids(server), [2]);
  assert.deepEqual(
    [a, b, c].map((statement) => statement!.refs),
    [0, 1, 0],
  );
});

test('a statement is present for its own segment, unsure for later ones, then present', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const statement = registry.intern(KEY);
  assert.equal(server.presence(statement), Presence.absent);
  server.add(statement);
  assert.equal(server.presence(statement), Presence.present);
  assert.equal(server.isConfirmed(statement), false);
  progress.syncsSent = 1;
  assert.equal(server.presence(statement), Presence.unsure);
  assert.equal(server.use(statement), Presence.unsure);
  progress.syncsSent = 3;
  progress.syncsAnswered = 1;
  assert.equal(server.presence(statement), Presence.present);
  assert.equal(server.isConfirmed(statement), true);
});

test('an evicted statement is absent for its own segment, unsure for later ones, then absent', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const [a, b] = ['a', 'b'].map((key) => registry.intern(key));
  server.add(a!);
  server.add(b!);
  progress.syncsSent = progress.syncsAnswered = 1;
  server.evictOver(1);
  assert.equal(server.presence(a!), Presence.absent);
  progress.syncsSent = 2;
  assert.equal(server.presence(a!), Presence.unsure);
  assert.equal(server.use(a!), Presence.unsure);
  progress.syncsAnswered = 2;
  assert.equal(server.presence(a!), Presence.absent);
});

test('a failed Parse is forgotten unless a later segment has sent it again', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const statement = registry.intern(KEY);
  server.add(statement);
  progress.syncsSent = 1;
  server.add(statement);
  progress.syncsAnswered = 1;
  server.onParseFailed(statement, 0);
  assert.equal(server.size, 1);
  server.onParseFailed(statement, 1);
  assert.equal(server.size, 0);
  server.onParseFailed(statement, 1);
  assert.equal(registry.size, 0);
});

test('evictions that were not run are put back as the oldest, in their old order, unsure', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const statements = ['a', 'b', 'c', 'd'].map((key) => registry.intern(key));
  for (const statement of statements) server.add(statement);
  progress.syncsSent = progress.syncsAnswered = 1;
  const victims = [server.evictOver(2)!, server.evictOver(2)!];
  assert.deepEqual(ids(server), [3, 4]);
  for (const victim of victims.reverse()) server.onCloseFailed(victim);
  assert.deepEqual(ids(server), [1, 2, 3, 4]);
  assert.equal(server.presence(statements[0]!), Presence.unsure);
  assert.equal(server.isConfirmed(statements[0]!), false);
  assert.equal(server.presence(statements[3]!), Presence.present);
  server.onCloseFailed(statements[3]!);
  assert.equal(server.presence(statements[3]!), Presence.present, 'parsed again since');
  server.add(statements[0]!);
  assert.equal(server.presence(statements[0]!), Presence.present);
});

test('a connection that ends gives up all its statements', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  for (let i = 0; i < 10; i++) server.add(registry.intern(`${i}`));
  const victim = server.evictOver(9)!;
  progress.syncsSent = 1;
  server.clear();
  assert.equal(server.size, 0);
  assert.equal(registry.size, 0);
  assert.equal(server.presence(victim), Presence.absent);
});

test('DEALLOCATE ALL forgets what was answered before it and doubts what is sent behind it', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const client = new ClientStatements(registry);
  const [before, behind] = ['before', 'behind'].map((text) => registry.intern(text)) as [
    ReturnType<StatementRegistry['intern']>,
    ReturnType<StatementRegistry['intern']>,
  ];
  server.add(before);
  client.set('before', before);
  progress.syncsSent = progress.syncsAnswered = 1;
  server.add(behind);
  client.set('behind', behind);
  progress.syncsSent = 2;
  server.onDeallocateAll();
  client.onDeallocateAll(new Set(['behind']));
  assert.equal(server.presence(before), Presence.absent);
  assert.equal(client.has('before'), false);
  assert.equal(before.refs, 0);
  assert.equal(client.get('behind'), behind);
  progress.syncsAnswered = 2;
  assert.equal(server.presence(behind), Presence.unsure);
  server.add(behind);
  assert.equal(server.presence(behind), Presence.present);
  server.onParseFailed(behind, 2);
  assert.equal(server.presence(behind), Presence.absent, 'its Parse failed');
});

test('while a DEALLOCATE ALL is on its way all that was there before it is unsure', () => {
  const registry = new StatementRegistry();
  const progress = new Progress();
  const server = new ServerStatements(registry, progress);
  const [unused, used] = ['unused', 'used'].map((text) => registry.intern(text)) as [
    ReturnType<StatementRegistry['intern']>,
    ReturnType<StatementRegistry['intern']>,
  ];
  server.add(unused);
  server.add(used);
  progress.syncsSent = progress.syncsAnswered = 1;
  server.onDeallocateAllSent();
  assert.equal(server.presence(unused), Presence.unsure);
  assert.equal(server.isConfirmed(unused), false);
  assert.equal(server.use(used), Presence.unsure);
  server.add(used);
  progress.syncsSent = 2;
  server.onDeallocateAll();
  assert.equal(server.presence(unused), Presence.absent);
  progress.syncsAnswered = 2;
  assert.equal(server.presence(used), Presence.unsure, 'closed and prepared once more at most');
});
