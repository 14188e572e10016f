import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ClientStatements } from '../../../src/prepared/client-statements.ts';
import { StatementRegistry } from '../../../src/prepared/registry.ts';
import { ServerStatements } from '../../../src/prepared/server-statements.ts';
import {
  Outcome,
  StatementTranslator,
  type Translation,
} from '../../../src/prepared/translator.ts';
import { bind, close, describe, message, Progress, parse } from './builders.ts';

/** A process with clients and servers, and the bytes that a server would be sent. */
class Pooler {
  readonly registry = new StatementRegistry();
  readonly translator: StatementTranslator;
  readonly progress = new Progress();

  constructor(limit = 200) {
    this.translator = new StatementTranslator(this.registry, limit);
  }

  client(): ClientStatements {
    return new ClientStatements(this.registry);
  }

  server(): ServerStatements {
    return new ServerStatements(this.registry, this.progress);
  }

  /** Has the message translated in the midst of other bytes, and tells what goes to the server. */
  say(
    client: ClientStatements,
    server: ServerStatements,
    bytes: Buffer,
  ): { answer: Translation; toServer: Buffer } {
    const around = Buffer.concat([Buffer.from('\0junk'), bytes, Buffer.from('junk\0')]);
    const end = 5 + bytes.length;
    const answer = this.#translate(client, server, around, end);
    assert.equal(this.translator.last, answer);
    const toServer = Buffer.concat([
      answer.inject ?? Buffer.alloc(0),
      answer.head.subarray(0, answer.headBytes),
      answer.outcome === Outcome.send ? around.subarray(answer.restStart, end) : Buffer.alloc(0),
    ]);
    return { answer, toServer };
  }

  #translate(
    client: ClientStatements,
    server: ServerStatements,
    bytes: Buffer,
    end: number,
  ): Translation {
    switch (String.fromCharCode(bytes[5]!)) {
      case 'P':
        return this.translator.onParse(client, server, bytes, 5, end);
      case 'B':
        return this.translator.onBind(client, server, bytes, 5, end);
      case 'D':
        return this.translator.onDescribe(client, server, bytes, 5, end);
      default:
        return this.translator.onClose(client, bytes, 5, end);
    }
  }

  /** All that was sent so far is answered. */
  settle(): void {
    this.progress.syncsAnswered = ++this.progress.syncsSent;
  }
}

function injected(answer: Translation): string {
  return answer.injected
    .map(({ type, statement }) => `${String.fromCharCode(type)}${statement.id}`)
    .join(' ');
}

test('the first Parse of a statement is sent under its own name', () => {
  const pooler = new Pooler();
  const { answer, toServer } = pooler.say(
    pooler.client(),
    pooler.server(),
    parse('stmt', 'select $1', 23),
  );
  assert.equal(answer.outcome, Outcome.send);
  assert.equal(answer.name, 'stmt');
  assert.equal(answer.statement!.id, 1);
  assert.equal(answer.inject, null);
  assert.deepEqual(toServer, parse('PGBOUNCER_1', 'select $1', 23));
});

test('a Parse of what the server has is answered by the pooler', () => {
  const pooler = new Pooler();
  const server = pooler.server();
  pooler.say(pooler.client(), server, parse('a', 'select 1'));
  pooler.settle();
  const { answer, toServer } = pooler.say(pooler.client(), server, parse('b', 'select 1'));
  assert.equal(answer.outcome, Outcome.fake);
  assert.equal(answer.statement!.id, 1);
  assert.equal(toServer.length, 0);
});

test('a Parse does not make a statement that is there the most recently used', () => {
  const pooler = new Pooler();
  const server = pooler.server();
  pooler.say(pooler.client(), server, parse('a', 'select 1'));
  pooler.say(pooler.client(), server, parse('b', 'select 2'));
  pooler.say(pooler.client(), server, parse('c', 'select 1'));
  assert.deepEqual(
    [...server].map(({ id }) => id),
    [1, 2],
  );
});

test('a name in use or unknown is refused in PgBouncer’s words', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select 1'));
  for (const [bytes, text] of [
    [parse('a', 'select 1'), 'prepared statement name is already in use'],
    [parse('a', 'select 2'), 'prepared statement name is already in use'],
    [bind('', 'b'), 'prepared statement did not exist'],
    [describe('b'), 'prepared statement did not exist'],
  ] as const) {
    const { answer, toServer } = pooler.say(client, server, bytes);
    assert.equal(answer.outcome, Outcome.refused);
    assert.equal(answer.text, text);
    assert.equal(answer.statement, null);
    assert.equal(toServer.length, 0);
  }
  assert.equal(pooler.registry.size, 1);
});

test('a broken message is refused in PgBouncer’s words', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  for (const [bytes, text] of [
    [message('P', 'a\0select 1\0'), 'broken Parse packet'],
    [message('P', 'a\0select 1\0\0\x01\0\0'), 'broken Parse packet'],
    [message('P', 'a'), 'failed to parse packet'],
    [message('B', 'p'), 'failed to parse packet'],
    [message('B', '\0name'), 'failed to parse packet'],
    [message('D', 'Sa'), 'failed to parse packet'],
    [message('D', 'Sa\0b'), 'broken Describe packet'],
    [message('C', 'Sa'), 'failed to parse packet'],
    [message('C', 'Sa\0b'), 'broken Close packet'],
  ] as const) {
    const { translator } = pooler;
    const on = {
      P: () => translator.onParse(client, server, bytes, 0, bytes.length),
      B: () => translator.onBind(client, server, bytes, 0, bytes.length),
      D: () => translator.onDescribe(client, server, bytes, 0, bytes.length),
      C: () => translator.onClose(client, bytes, 0, bytes.length),
    };
    const answer = on[String.fromCharCode(bytes[0]!) as keyof typeof on]();
    assert.equal(answer.outcome, Outcome.refused);
    assert.equal(answer.text, text);
  }
  assert.equal(client.size + server.size + pooler.registry.size, 0);
});

test('Bind and Describe bring the Parse along to a server that lacks the statement', () => {
  for (const [bytes, rewritten] of [
    [bind('p', 'a', 'value'), bind('p', 'PGBOUNCER_1', 'value')],
    [describe('a'), describe('PGBOUNCER_1')],
  ] as const) {
    const pooler = new Pooler();
    const client = pooler.client();
    pooler.say(client, pooler.server(), parse('a', 'select $1', 25));
    pooler.settle();
    const other = pooler.server();
    const first = pooler.say(client, other, bytes);
    assert.equal(injected(first.answer), 'P1');
    assert.deepEqual(
      first.toServer,
      Buffer.concat([parse('PGBOUNCER_1', 'select $1', 25), rewritten]),
    );
    const second = pooler.say(client, other, bytes);
    assert.equal(second.answer.inject, null);
    assert.deepEqual(second.toServer, rewritten);
  }
});

test('a Bind is rewritten when no more of it than its names has come', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select $1'));
  const whole = bind('portal', 'a', 'x'.repeat(100));
  const namesEnd = 5 + 'portal\0a\0'.length;
  const answer = pooler.translator.onBind(client, server, whole, 0, namesEnd);
  assert.equal(answer.restStart, namesEnd);
  assert.deepEqual(
    Buffer.concat([answer.head.subarray(0, answer.headBytes), whole.subarray(namesEnd)]),
    bind('portal', 'PGBOUNCER_1', 'x'.repeat(100)),
  );
  assert.equal(
    pooler.translator.onBind(client, server, whole, 0, namesEnd - 1).outcome,
    Outcome.refused,
  );
});

test('a portal name longer than the room kept for heads is carried whole', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select $1'));
  const portal = 'p'.repeat(5000);
  const { toServer } = pooler.say(client, server, bind(portal, 'a'));
  assert.deepEqual(toServer, bind(portal, 'PGBOUNCER_1'));
});

test('names are compared byte for byte, whatever their encoding', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  const umlaut = Buffer.from('ü').toString('latin1');
  pooler.say(client, server, parse(umlaut, 'select 1'));
  assert.equal(pooler.say(client, server, bind('', umlaut)).answer.outcome, Outcome.send);
  assert.equal(pooler.say(client, server, bind('', '\xfc')).answer.outcome, Outcome.refused);
});

test('Close needs no server, frees the name and leaves the statement on the server', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select 1'));
  const { answer } = pooler.say(client, server, close('a'));
  assert.equal(answer.outcome, Outcome.fake);
  assert.equal(answer.statement!.id, 1);
  assert.equal(answer.name, 'a');
  assert.equal(server.size, 1);
  assert.equal(client.size, 0);
  const again = pooler.say(client, server, parse('a', 'select 1'));
  assert.equal(again.answer.outcome, Outcome.fake);
  assert.equal(again.answer.statement!.id, 1);
  const unknown = pooler.say(client, server, close('none'));
  assert.equal(unknown.answer.outcome, Outcome.fake);
  assert.equal(unknown.answer.statement, null);
});

test('a Parse beyond the limit closes the least recently used statements', () => {
  const pooler = new Pooler(2);
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select 1'));
  pooler.say(client, server, parse('b', 'select 2'));
  pooler.say(client, server, bind('', 'a'));
  const third = pooler.say(client, server, parse('c', 'select 3'));
  assert.equal(injected(third.answer), 'C2');
  assert.deepEqual(
    third.toServer,
    Buffer.concat([close('PGBOUNCER_2'), parse('PGBOUNCER_3', 'select 3')]),
  );
  const back = pooler.say(client, server, bind('', 'b'));
  assert.equal(injected(back.answer), 'P2 C1');
  assert.deepEqual(
    back.toServer,
    Buffer.concat([
      parse('PGBOUNCER_2', 'select 2'),
      close('PGBOUNCER_1'),
      bind('', 'PGBOUNCER_2'),
    ]),
  );
});

test('a lowered limit takes effect at the next Parse sent', () => {
  const pooler = new Pooler(5);
  const [client, server] = [pooler.client(), pooler.server()];
  for (let i = 1; i <= 5; i++) pooler.say(client, server, parse(`s${i}`, `select ${i}`));
  pooler.translator.limit = 2;
  assert.equal(injected(pooler.say(client, server, bind('', 's1')).answer), '');
  assert.equal(server.size, 5);
  assert.equal(injected(pooler.say(client, server, parse('s6', 'select 6')).answer), 'C2 C3 C4 C5');
  assert.deepEqual(
    [...server].map(({ id }) => id),
    [1, 6],
  );
});

test('a statement whose Parse hangs on an earlier Sync is closed and parsed anew', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  pooler.say(client, server, parse('a', 'select 1'));
  assert.equal(injected(pooler.say(client, server, bind('', 'a')).answer), '');
  pooler.progress.syncsSent = 1;
  const later = pooler.say(client, server, bind('', 'a'));
  assert.equal(injected(later.answer), 'C1 P1');
  assert.equal(injected(pooler.say(client, server, describe('a')).answer), '');
  pooler.progress.syncsSent = 2;
  const parsed = pooler.say(client, server, parse('b', 'select 1'));
  assert.equal(parsed.answer.outcome, Outcome.send);
  assert.deepEqual(
    parsed.toServer,
    Buffer.concat([close('PGBOUNCER_1'), parse('PGBOUNCER_1', 'select 1')]),
  );
  pooler.progress.syncsSent = pooler.progress.syncsAnswered = 3;
  assert.equal(injected(pooler.say(client, server, bind('', 'a')).answer), '');
});

test('a name whose Parse was rejected can be used again', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  const { answer } = pooler.say(client, server, parse('a', 'select broken'));
  const failed = { kind: 0x50, statement: answer.statement!, name: 'a', isFake: false, segment: 0 };
  pooler.settle();
  pooler.translator.undo([failed], client, server);
  assert.equal(client.size + server.size + pooler.registry.size, 0);
  const again = pooler.say(client, server, parse('a', 'select fine'));
  assert.equal(again.answer.outcome, Outcome.send);
  assert.equal(again.answer.statement!.id, 2);
});

test('undoing a batch leaves both tables as before it', () => {
  const pooler = new Pooler(1);
  const [client, server] = [pooler.client(), pooler.server()];
  const one = pooler.say(client, server, parse('a', 'select 1')).answer.statement!;
  pooler.settle();
  // Close of a, Parse of b which closes the statement of a on the server, then a again by a name.
  pooler.say(client, server, close('a'));
  const two = pooler.say(client, server, parse('b', 'select 2')).answer.statement!;
  assert.equal(one.refs, 0);
  const segment = pooler.progress.syncsSent;
  pooler.settle();
  pooler.translator.undo(
    [
      { kind: 0x50, statement: two, name: 'b', isFake: false, segment },
      { kind: 0x43, statement: one, name: null, isFake: false, segment },
      { kind: 0x43, statement: one, name: 'a', isFake: true, segment },
    ],
    client,
    server,
  );
  assert.equal(client.get('a'), one);
  assert.equal(client.size, 1);
  assert.deepEqual([...server], [one]);
  assert.equal(one.refs, 2);
  assert.equal(pooler.registry.size, 1);
  assert.equal(pooler.registry.find(one.key), one);
});

test('undoing touches no name that was taken again, and no client that has left', () => {
  const pooler = new Pooler();
  const [client, server] = [pooler.client(), pooler.server()];
  const one = pooler.say(client, server, parse('a', 'select 1')).answer.statement!;
  pooler.say(client, server, close('a'));
  const two = pooler.say(client, server, parse('a', 'select 2')).answer.statement!;
  const failed = [
    { kind: 0x43, statement: one, name: 'a', isFake: true, segment: 0 },
    { kind: 0x50, statement: one, name: 'a', isFake: true, segment: 0 },
  ];
  pooler.translator.undo(failed, client, server);
  assert.equal(client.get('a'), two);
  pooler.translator.undo(failed, null, server);
  assert.equal(server.size, 2);
});
