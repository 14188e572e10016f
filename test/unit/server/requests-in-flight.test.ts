import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PreparedStatement } from '../../../src/prepared/statement.ts';
import {
  ReplyAction,
  RequestAction,
  RequestKind,
  RequestsInFlight,
} from '../../../src/server/requests-in-flight.ts';

const KINDS: Record<string, RequestKind> = {
  Q: RequestKind.query,
  F: RequestKind.functionCall,
  S: RequestKind.sync,
  P: RequestKind.parse,
  B: RequestKind.bind,
  D: RequestKind.describe,
  E: RequestKind.execute,
  C: RequestKind.close,
  c: RequestKind.copyDone,
  f: RequestKind.copyFail,
};
const ACTIONS: Record<string, RequestAction> = {
  '': RequestAction.forward,
  '-': RequestAction.swallow,
  '*': RequestAction.fake,
};

/** Pushes requests written as their letters, `-` in front for the pooler's own, `*` for faked ones. */
function push(requests: RequestsInFlight, script: string): void {
  for (const [, mark, letter] of script.matchAll(/([-*]?)(\w)/g)) {
    requests.push(KINDS[letter!]!, ACTIONS[mark!]!);
  }
}

/**
 * Feeds replies written as their letters and gives back what the client sees: the letters forwarded,
 * faked replies in angle brackets behind the reply that they follow.
 */
function feed(requests: RequestsInFlight, replies: string): string {
  let seen = '';
  for (const letter of replies.replaceAll(' ', '')) {
    if (requests.onReply(letter.charCodeAt(0)) === ReplyAction.forward) seen += letter;
    while (requests.hasFakeDue) {
      const fake = requests.nextFake();
      assert.notEqual(fake, 0);
      seen += fake === RequestKind.parse ? '<1>' : '<3>';
    }
    assert.equal(requests.nextFake(), 0);
  }
  return seen;
}

function inFlight(script: string): RequestsInFlight {
  const requests = new RequestsInFlight();
  push(requests, script);
  return requests;
}

/** One row: requests, replies, what the client sees, how many requests are then left. */
type Row = [requests: string, replies: string, seen: string, left: number];

function checkRows(rows: readonly Row[], isDoubtful = false): void {
  for (const [script, replies, seen, left] of rows) {
    const requests = inFlight(script);
    const name = `${script} / ${replies}`;
    assert.equal(feed(requests, replies), seen, name);
    assert.equal(requests.size, left, `left after ${name}`);
    assert.equal(requests.isDoubtful, isDoubtful, `doubt after ${name}`);
  }
}

test('each kind of request is answered by its own replies', () => {
  checkRows([
    ['Q', 'C', 'C', 1],
    ['Q', 'TDDCZ', 'TDDCZ', 0],
    ['Q', 'IZ', 'IZ', 0],
    ['F', 'V', 'V', 1],
    ['F', 'VZ', 'VZ', 0],
    ['S', 'Z', 'Z', 0],
    ['P', '1', '1', 0],
    ['B', '2', '2', 0],
    ['C', '3', '3', 0],
    ['D', 't', 't', 1],
    ['D', 'tT', 'tT', 0],
    ['D', 'tn', 'tn', 0],
    ['D', 'n', 'n', 0],
    ['E', 'DD', 'DD', 1],
    ['E', 'DDC', 'DDC', 0],
    ['E', 'I', 'I', 0],
    ['E', 'Ds', 'Ds', 0],
  ]);
});

test('no reply inside a simple Query takes it off before ReadyForQuery', () => {
  checkRows([
    ['QQ', 'TDC TDC I E', 'TDCTDCIE', 2],
    ['QQ', 'TDC TDC I EZ', 'TDCTDCIEZ', 1],
    ['QE', 'TDCC', 'TDCC', 2],
  ]);
});

test('notices, notifications and parameter reports never touch the queue', () => {
  for (const script of ['Q', 'P', 'B', 'D', 'E', 'C', 'S', 'F', '-P', '-Q', '']) {
    const requests = inFlight(script);
    assert.equal(feed(requests, 'NSA'), 'NSA');
    assert.equal(requests.size, script === '' ? 0 : 1);
    assert.equal(requests.isDoubtful, false);
  }
});

test('a whole pipeline over several Syncs is answered in order', () => {
  checkRows([
    ['PBDES', '12TDCZ', '12TDCZ', 0],
    ['PBDESPBDES', '12TDCZ 12TDC', '12TDCZ12TDC', 1],
    ['PBES QQ BES', '12DCZ CZ CZ 2sZ', '12DCZCZCZ2sZ', 0],
    ['EEES', 'DsDsDCZ', 'DsDsDCZ', 0],
  ]);
});

test('the replies to the pooler’s own requests are swallowed', () => {
  checkRows([
    ['-PBES', '12CZ', '2CZ', 0],
    ['-P-CBES', '132CZ', '2CZ', 0],
    ['-PDS', '1tTZ', 'tTZ', 0],
    ['-QQ', 'CZ CZ', 'CZ', 0],
    ['-QQ', 'CSZ TDCZ', 'STDCZ', 0],
    ['-QQ', 'EZ CZ', 'CZ', 0],
    ['-S', 'EZ', '', 0],
    ['-E-D', 'DDCtT', '', 0],
  ]);
});

test('a faked reply follows the real reply before it', () => {
  checkRows([
    ['B*PS', '2Z', '2<1>Z', 0],
    ['B*P*C*PS', '2Z', '2<1><3><1>Z', 0],
    ['S*P', 'Z', 'Z<1>', 0],
    ['Q*PB', 'TDCZ2', 'TDCZ<1>2', 0],
    ['-P*C', '1', '<3>', 0],
  ]);
});

test('a faked reply with nothing before it is due at once', () => {
  const requests = new RequestsInFlight();
  push(requests, '*P*C');
  assert.equal(requests.nextFake(), RequestKind.parse);
  assert.equal(requests.nextFake(), RequestKind.close);
  assert.equal(requests.nextFake(), 0);
  assert.equal(requests.size, 0);
});

test('after an error everything up to Sync is dropped, faked replies too', () => {
  const batch = 'PBDE';
  const replies = ['', '1', '12', '12T'];
  for (let at = 0; at < batch.length; at++) {
    for (const fakes of ['', '*P', '*C', '*P*C']) {
      const script = `${batch.slice(0, at + 1)}${fakes}${batch.slice(at + 1)}${fakes}S`;
      checkRows([
        [script, `${replies[at]}E`, `${replies[at]}E`, script.replaceAll('*', '').length - at],
        [script, `${replies[at]}EZ`, `${replies[at]}EZ`, 0],
        [`${script}*PBS`, `${replies[at]}EZ2Z`, `${replies[at]}EZ<1>2Z`, 0],
        [`${script}Q`, `${replies[at]}EZCZ`, `${replies[at]}EZCZ`, 0],
      ]);
    }
  }
});

test('a Query or FunctionCall between an error and Sync is ignored by the server', () => {
  checkRows([
    ['BQS', 'EZ', 'EZ', 0],
    ['BFSQ', 'EZ', 'EZ', 1],
  ]);
});

test('an error in a simple Query drops only that Query', () => {
  checkRows([
    ['QPBES', 'EZ12CZ', 'EZ12CZ', 0],
    ['Q*PQ', 'TDEZ CZ', 'TDEZ<1>CZ', 0],
    ['FQ', 'EZCZ', 'EZCZ', 0],
  ]);
});

test('an error at Sync itself drops only that Sync', () => {
  checkRows([
    ['PBESPBES', '12CEZ12CZ', '12CEZ12CZ', 0],
    ['S*P', 'E', 'E', 2],
    ['S*P', 'EZ', 'EZ<1>', 0],
  ]);
});

test('requests pushed after the error are dropped with the rest up to Sync', () => {
  const requests = inFlight('B');
  assert.equal(feed(requests, 'E'), 'E');
  push(requests, '*PES');
  assert.equal(requests.nextFake(), 0);
  assert.equal(feed(requests, 'Z'), 'Z');
  assert.equal(requests.size, 0);
});

test('the error of an injected Parse goes to the client', () => {
  checkRows([
    ['-PBES', 'EZ', 'EZ', 0],
    ['-P-CDSQ', 'EZ', 'EZ', 1],
  ]);
});

test('a COPY in a simple Query ends without ending the Query', () => {
  const requests = inFlight('Q');
  assert.equal(requests.isCopyIn, false);
  assert.equal(feed(requests, 'G'), 'G');
  assert.equal(requests.isCopyIn, true);
  push(requests, 'cQ');
  assert.equal(feed(requests, 'C'), 'C');
  assert.equal(requests.isCopyIn, false);
  assert.equal(requests.size, 2);
  assert.equal(feed(requests, 'TDCZ'), 'TDCZ');
  assert.equal(requests.size, 1);
  checkRows([
    ['Qc', 'GCZ', 'GCZ', 0],
    ['QSSc', 'GCZ', 'GCZ', 0],
    ['QcSc', 'GCGCZ', 'GCGCZ', 0],
    ['Qc', 'TDC GCTDC', 'TDCGCTDC', 1],
    ['QcQc', 'GCZGCZ', 'GCZGCZ', 0],
    ['Q', 'HddcCZ', 'HddcCZ', 0],
    ['Qc', 'WdcCZ', 'WdcCZ', 0],
  ]);
});

test('a COPY of an Execute eats the Syncs sent before its end', () => {
  checkRows([
    ['PBEScS', '12G', '12G', 4],
    ['PBEScS', '12GC', '12GC', 1],
    ['PBEScS', '12GCZ', '12GCZ', 0],
    ['PBEcS', '12GCZ', '12GCZ', 0],
    ['EcEcS', 'GCGCZ', 'GCGCZ', 0],
    ['ES', 'HdcCZ', 'HdcCZ', 0],
    ['EScS*PB', 'GCZ2', 'GCZ<1>2', 0],
  ]);
});

test('a failed COPY drops what was sent up to its end', () => {
  checkRows([
    ['Qf', 'GEZ', 'GEZ', 0],
    ['Qf', 'GE', 'GE', 1],
    ['QcQ', 'GEZCZ', 'GEZCZ', 0],
    ['EfS', 'GEZ', 'GEZ', 0],
    ['EcS', 'GEZ', 'GEZ', 0],
    ['EcPBESQ', 'GEZ', 'GEZ', 1],
    ['Ec*PS', 'GEZ', 'GEZ', 0],
  ]);
});

test('a failed COPY with a Sync before its end leaves doubt', () => {
  checkRows(
    [
      ['EScS', 'GEZ', 'GEZ', 0],
      ['ESfS', 'GEZ', 'GEZ', 0],
      ['EScS', 'GEZZ', 'GEZZ', 0],
      ['ES', 'GE', 'GE', 0],
      ['QSc', 'GEZ', 'GEZ', 0],
      ['QSS', 'GE', 'GE', 1],
    ],
    true,
  );
  const requests = inFlight('ES');
  feed(requests, 'GE');
  push(requests, 'cS');
  assert.equal(feed(requests, 'Z'), 'Z');
  assert.equal(requests.size, 0);
  requests.clear();
  assert.equal(requests.isDoubtful, false);
});

test('a CopyDone or CopyFail outside COPY is owed no reply', () => {
  checkRows([
    ['c', '', '', 0],
    ['f', '', '', 0],
    ['cQ', 'CZ', 'CZ', 0],
    ['QcQ', 'EZ', 'EZ', 1],
    ['QcQ', 'EZCZ', 'EZCZ', 0],
    ['QfcfQ', 'EZ', 'EZ', 1],
    ['EScSQ', 'EZ', 'EZ', 2],
    ['PBEcS', '12C', '12C', 1],
    ['EcES', 'CCZ', 'CCZ', 0],
  ]);
  const requests = inFlight('Q');
  feed(requests, 'GE');
  push(requests, 'cQ');
  assert.equal(feed(requests, 'Z'), 'Z');
  assert.equal(requests.size, 1);
});

test('a reply that nothing asked for leaves doubt and is forwarded', () => {
  for (const [script, reply] of [
    ['', 'Z'],
    ['B', 'Z'],
    ['B', '1'],
    ['', '2'],
    ['Q', '3'],
    ['E', 'n'],
    ['D', 's'],
    ['B', 'C'],
    ['E', 'T'],
    ['F', 'I'],
    ['*P', '1'],
    ['-B', '1'],
  ] as const) {
    const requests = inFlight(script);
    requests.onReply(reply.charCodeAt(0));
    assert.equal(requests.isDoubtful, true, `${script} / ${reply}`);
    assert.equal(requests.size, script.replace(/[-*]/, '').length);
  }
});

/** Three statements whose Parses and Closes are pushed among other requests. */
const [S1, S2, S3] = [1, 2, 3].map((id) => new PreparedStatement(id, `select ${id}\0\0\0`)) as [
  PreparedStatement,
  PreparedStatement,
  PreparedStatement,
];

test('a batch that fails at any place tells what came to nothing, the latest first', () => {
  const replies = ['', '1', '13', '132', '132'];
  const expected = [
    ['P 3 c fake', 'C 2 b fake', 'C 3 null sent', 'P 1 a sent'],
    ['P 3 c fake', 'C 2 b fake', 'C 3 null sent'],
    ['P 3 c fake', 'C 2 b fake'],
    [],
  ];
  for (let at = 0; at < 4; at++) {
    const requests = new RequestsInFlight();
    requests.push(RequestKind.parse, RequestAction.forward, S1, 'a');
    requests.push(RequestKind.close, RequestAction.swallow, S3);
    requests.push(RequestKind.bind, RequestAction.forward);
    requests.push(RequestKind.close, RequestAction.fake, S2, 'b');
    requests.push(RequestKind.parse, RequestAction.fake, S3, 'c');
    requests.push(RequestKind.execute, RequestAction.forward);
    requests.push(RequestKind.sync, RequestAction.forward);
    feed(requests, `${replies[at]}E`);
    assert.deepEqual(requests.takeFailed(), [], 'nothing is told before ReadyForQuery');
    feed(requests, 'Z');
    assert.deepEqual(
      requests.takeFailed().map(({ kind, statement, name, isFake, segment }) => {
        assert.equal(segment, 0);
        const letter = String.fromCharCode(kind);
        return `${letter} ${statement.id} ${name} ${isFake ? 'fake' : 'sent'}`;
      }),
      expected[at],
    );
    assert.deepEqual(requests.takeFailed(), []);
  }
});

test('a failure keeps quiet about a name that a later request in flight decides', () => {
  const requests = new RequestsInFlight();
  requests.push(RequestKind.bind, RequestAction.forward);
  requests.push(RequestKind.parse, RequestAction.forward, S1, 'a');
  requests.push(RequestKind.close, RequestAction.fake, S2, 'b');
  requests.push(RequestKind.sync, RequestAction.forward);
  requests.push(RequestKind.close, RequestAction.fake, S1, 'a');
  requests.push(RequestKind.parse, RequestAction.fake, S1, 'a');
  requests.push(RequestKind.sync, RequestAction.forward);
  requests.onReply('E'.charCodeAt(0));
  requests.onReply('Z'.charCodeAt(0));
  assert.deepEqual(
    requests.takeFailed().map(({ statement, name }) => `${statement.id} ${name}`),
    ['2 b', '1 null'],
  );
});

test('Syncs are counted when sent and when they leave the queue in whatever way', () => {
  const requests = inFlight('PS BS EScS S');
  assert.equal(requests.syncsSent, 5);
  for (const [replies, answered] of [
    ['1', 0],
    ['Z', 1],
    ['E', 1],
    ['Z', 2],
    ['GC', 3],
    ['Z', 4],
    ['Z', 5],
  ] as const) {
    feed(requests, replies);
    assert.equal(requests.syncsAnswered, answered);
  }
  push(requests, 'QS');
  requests.clear();
  assert.equal(requests.syncsSent, 6);
  assert.equal(requests.syncsAnswered, 6);
});

test('the segment of a failure is the number of Syncs sent before it', () => {
  const requests = inFlight('S');
  requests.push(RequestKind.parse, RequestAction.forward, S1, 'a');
  push(requests, 'S');
  requests.push(RequestKind.parse, RequestAction.forward, S2, 'b');
  push(requests, 'S');
  feed(requests, 'ZEZEZ');
  assert.deepEqual(
    requests.takeFailed().map(({ statement, segment }) => `${statement.id} ${segment}`),
    ['2 2', '1 1'],
  );
});

test('a batch that succeeds tells no failure', () => {
  const requests = new RequestsInFlight();
  requests.push(RequestKind.parse, RequestAction.forward, S1, 'a');
  requests.push(RequestKind.sync, RequestAction.forward);
  feed(requests, '1EZ');
  assert.deepEqual(requests.takeFailed(), []);
});

test('the queue grows in order however it was turned before', () => {
  for (let turned = 0; turned < 20; turned++) {
    const requests = new RequestsInFlight();
    for (let i = 0; i < turned; i++) {
      push(requests, 'B');
      feed(requests, '2');
    }
    const script = 'PBDEC'.repeat(30);
    push(requests, `${script}S`);
    assert.equal(requests.size, 151);
    assert.equal(feed(requests, '12TC3'.repeat(30)).length, 150);
    assert.equal(requests.size, 1);
    assert.equal(requests.isDoubtful, false);
  }
});

test('clear forgets requests, the COPY, the failure and the doubt', () => {
  const requests = inFlight('BQPS');
  requests.push(RequestKind.parse, RequestAction.forward, S1);
  feed(requests, '1E');
  requests.clear();
  assert.equal(requests.size, 0);
  assert.equal(requests.isDoubtful, false);
  assert.deepEqual(requests.takeFailed(), []);
  push(requests, 'Q');
  feed(requests, 'G');
  requests.clear();
  assert.equal(requests.isCopyIn, false);
  push(requests, '*P');
  assert.equal(requests.nextFake(), RequestKind.parse);
});

test('a COPY that failed among Syncs may owe more than is counted, until a barrier is passed', () => {
  for (const [script, replies] of [
    ['ES', 'GE'],
    ['QS', 'GEZ'],
    ['ESSc', 'GE'],
  ] as const) {
    const requests = inFlight(script);
    feed(requests, replies);
    assert.equal(requests.mayOweMore, true, script);
    requests.push(RequestKind.barrier, RequestAction.forward);
    assert.equal(requests.isBarrierNext, true, script);
    requests.passBarrier();
    assert.equal(requests.size, 0, script);
    assert.equal(requests.mayOweMore, false, script);
    assert.equal(requests.isDoubtful, false, script);
  }
});

test('an answer that comes before the barrier goes to the client, and leaves the doubt', () => {
  const requests = inFlight('ES');
  feed(requests, 'GE');
  requests.push(RequestKind.barrier, RequestAction.forward);
  assert.equal(feed(requests, 'Z12nTDCIGEZ'), 'Z12nTDCIGEZ');
  assert.equal(requests.isBarrierNext, true);
  requests.passBarrier();
  assert.equal(requests.isDoubtful, true);
});

test('the names that requests in flight make or close are told until their replies', () => {
  const requests = new RequestsInFlight();
  const statement = new PreparedStatement(1, 'select 1\0\0\0');
  requests.push(RequestKind.query, RequestAction.forward);
  requests.push(RequestKind.parse, RequestAction.forward, statement, 'a');
  requests.push(RequestKind.close, RequestAction.fake, statement, 'b');
  requests.push(RequestKind.sync, RequestAction.forward);
  assert.deepEqual([...requests.namesInFlight()], ['a', 'b']);
  requests.onReply(0x5a);
  requests.onReply(0x31);
  assert.deepEqual([...requests.namesInFlight()], ['b']);
});

// Groups that are run again, and refusals

test('a single group with its Sync at the end tells how many answers are owed', () => {
  for (const [script, left] of [
    ['', -1],
    ['Q', -1],
    ['BDE', -1],
    ['BDES', 4],
    ['*PBDES', 4],
    ['BDESB', -1],
    ['BDESQ', -1],
    ['SBS', -1],
    ['S', 1],
  ] as const) {
    assert.equal(inFlight(script).groupLeft, left, script);
  }
});

test('whether the latest request is a Sync', () => {
  for (const [script, isSync] of [
    ['', false],
    ['BES', true],
    ['BESB', false],
    ['S', true],
    ['Q', false],
  ] as const) {
    assert.equal(inFlight(script).endsInSync, isSync, script);
  }
});

test('a group that is run again is answered once, behind what the client is not to hear', () => {
  for (const [script, before, answered, replies, seen] of [
    ['BDES', '', '-C-P', '31 2TDCZ', '2TDCZ'],
    ['BBDES', '2', '-C-P-B', '312 2TDCZ', '2TDCZ'],
    ['*PDS', '', '-C-P', '31 tTZ', 'tTZ'],
    // The statement has become invalid: the error of its new Parse is the group's.
    ['BDES', '', '-C-P', '3EZ', 'EZ'],
  ] as const) {
    const requests = inFlight(script);
    const faked = script.startsWith('*') ? '<1>' : '';
    let heard = requests.nextFake() === 0 ? '' : '<1>';
    heard += feed(requests, before);
    assert.equal(heard, faked + before, script);
    const { syncsSent, syncsAnswered } = requests;
    requests.runAgain(
      [...answered.matchAll(/-(\w)/g)].map(([, letter]) => ({
        kind: KINDS[letter!]!,
        statement: null,
      })),
    );
    assert.equal(requests.syncsSent, syncsSent + 1, 'it counts as a group of its own');
    assert.equal(requests.syncsAnswered, syncsAnswered + 1);
    assert.equal(feed(requests, replies), seen, script);
    assert.equal(requests.size, 0);
    assert.equal(requests.isDoubtful, false);
  }
});

test('a group is run again whatever place the ring has come to', () => {
  for (let turns = 0; turns < 20; turns++) {
    const requests = new RequestsInFlight();
    for (let i = 0; i < turns; i++) {
      push(requests, 'Q');
      feed(requests, 'CZ');
    }
    push(requests, `${'B'.repeat(turns)}DES`);
    const before = Array.from({ length: 14 }, () => ({ kind: RequestKind.close, statement: null }));
    requests.runAgain(before);
    assert.equal(
      feed(requests, `${'3'.repeat(14)}${'2'.repeat(turns)}TCZ`),
      `${'2'.repeat(turns)}TCZ`,
    );
    assert.equal(requests.size, 0);
  }
});

test('a refusal is told while what stands for the statement is the oldest request', () => {
  const requests = inFlight('B');
  requests.push(RequestKind.parse, RequestAction.refuse + 3);
  push(requests, 'S');
  assert.equal(requests.refusalNext < 0, true);
  assert.equal(feed(requests, '2'), '2');
  assert.equal(requests.refusalNext, 3);
  // The server's error is passed on as far as the queue goes: its reader puts the refusal in its place.
  assert.equal(feed(requests, 'EZ'), 'EZ');
  assert.equal(requests.size, 0);
  assert.equal(requests.refusalNext < 0, true);
});
