import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ClientStatements } from '../../../src/prepared/client-statements.ts';
import { StatementRegistry } from '../../../src/prepared/registry.ts';
import { Presence, ServerStatements } from '../../../src/prepared/server-statements.ts';
import type { PreparedStatement } from '../../../src/prepared/statement.ts';
import { Outcome, StatementTranslator } from '../../../src/prepared/translator.ts';
import {
  ReplyAction,
  RequestAction,
  RequestKind,
  RequestsInFlight,
} from '../../../src/server/requests-in-flight.ts';
import { ClientMessage } from '../../../src/wire/codes.ts';
import { BackendModel, type Request, type Run } from './backend-model.ts';

const { forward, swallow, fake } = RequestAction;
const TEXTS = ['a', 'b', 'c', 'd', 'broken'];
const NAMES = ['n1', 'n2', 'n3', 'n4', 'n5'];
const SERVER_LIMIT = 2;

/** A random client, the pooler's part around `RequestsInFlight`, and a backend, with delays between. */
class Round {
  readonly random: (limit: number) => number;
  readonly requests = new RequestsInFlight();
  readonly backend = new BackendModel();
  readonly registry = new StatementRegistry();
  readonly translator = new StatementTranslator(this.registry, SERVER_LIMIT);
  readonly clientTable = new ClientStatements(this.registry);
  readonly serverTable = new ServerStatements(this.registry, this.requests);
  readonly sent: Request[] = [];
  readonly received: string[] = [];
  toBackend: Request[] = [];
  toPooler: string[] = [];
  plan: (Request | 'awaitCopy' | 'endOfCopy' | 'quiet')[] = [];
  /** Client's view of its COPY: waiting for G or E since then. */
  sawCopyReply = false;
  sawError = false;
  hasFailed = false;
  /** The batch in hand began when nothing was in flight: an error is of this batch. */
  beganQuiet = false;
  /** Syncs that the client has sent, and for each name how many when it last changed. */
  segment = 0;
  readonly changedIn = new Map<string, number>();
  batchesLeft: number;
  id = 0;

  constructor(random: (limit: number) => number) {
    this.random = random;
    this.batchesLeft = 2 + random(6);
  }

  run(): void {
    for (let step = 0; step < 4000; step++) {
      const choice = this.random(4);
      if (choice === 0 && this.toBackend.length > 0) {
        this.toPooler.push(...this.backend.process(this.toBackend.shift()!));
      } else if (choice === 1 && this.toPooler.length > 0) {
        this.onReply(this.toPooler.shift()!);
      } else if (choice >= 2 && !this.clientStep() && this.isQuiet) {
        if (this.batchesLeft === 0 || this.requests.isDoubtful) return;
      }
    }
    assert.fail(`stuck: ${this.requests.size} in flight, plan ${JSON.stringify(this.plan)}`);
  }

  get isSilent(): boolean {
    return this.toBackend.length === 0 && this.toPooler.length === 0 && this.requests.size === 0;
  }

  get isQuiet(): boolean {
    return this.isSilent && this.plan.length === 0;
  }

  /** False when the client has nothing to do now. */
  clientStep(): boolean {
    const next = this.plan[0];
    if (next === undefined) {
      if (this.batchesLeft === 0 || this.requests.isDoubtful) return false;
      this.batchesLeft--;
      this.beganQuiet = this.random(2) === 0;
      if (this.beganQuiet) this.plan.push('quiet');
      this.planBatch();
      return true;
    }
    if (next === 'quiet') {
      if (!this.isSilent) return false;
      this.plan.shift();
      return true;
    }
    if (next === 'awaitCopy') {
      if (!this.sawCopyReply && !this.sawError) return false;
      this.plan.shift();
      // A client that was told of a failure may leave out its rows and the end of the COPY.
      if (this.sawError && this.beganQuiet && this.random(2) === 0) {
        this.plan.splice(0, this.plan.indexOf('endOfCopy'));
      }
      return true;
    }
    this.plan.shift();
    if (next !== 'endOfCopy') this.send(next);
    return true;
  }

  planBatch(): void {
    const kind = this.random(10);
    if (kind < 2) this.plan.push(...this.simpleQuery());
    else if (kind === 2) this.plan.push({ type: 'F', id: this.id++, fails: this.random(3) === 0 });
    else this.plan.push(...this.extendedBatch());
  }

  simpleQuery(): typeof this.plan {
    const id = this.id++;
    const runs: Run[] = [];
    for (let i = this.random(3); i >= 0; i--) runs.push(this.someRun());
    const copies = runs.filter((run) => run.does === 'copyIn').length;
    // Each COPY of a Query needs an end of its own, so that none waits for ever; a Query without
    // COPY sometimes gets one too, which is then late.
    const plan: typeof this.plan = [{ type: 'Q', id, runs }];
    for (let i = 0; i < copies; i++) plan.push(...this.copyRows(i === 0));
    return plan;
  }

  extendedBatch(): typeof this.plan {
    const plan: typeof this.plan = [];
    let mayLeaveDoubt = false;
    for (let i = this.random(8); i >= 0; i--) {
      const name = this.someName();
      const id = this.id++;
      switch (this.random(8)) {
        case 0:
        case 1:
          plan.push({ type: 'P', name, text: TEXTS[this.random(TEXTS.length)]! });
          break;
        case 2:
        case 3:
          plan.push({ type: 'B', id, name, fails: this.random(15) === 0 });
          break;
        case 4:
          plan.push({
            type: 'D',
            id,
            name: this.random(2) === 0 ? null : name,
            fails: this.random(15) === 0,
          });
          break;
        case 5:
          plan.push({ type: 'C', name: this.random(2) === 0 ? null : name });
          break;
        case 6: {
          const run = this.someRun();
          plan.push({ type: 'E', id, run });
          if (run.does !== 'copyIn') break;
          // Behind a COPY that may leave doubt nothing more is sent until all is answered: whether
          // the server skips it cannot be told.
          if (this.random(2) === 0) {
            plan.push({ type: 'S', id: this.id++, fails: false });
            mayLeaveDoubt = true;
            i = 0;
          }
          plan.push(...this.copyRows(true));
          break;
        }
        default:
          plan.push({ type: 'H' });
      }
    }
    plan.push({ type: 'S', id: this.id++, fails: this.random(12) === 0 });
    if (mayLeaveDoubt) plan.push('quiet');
    return plan;
  }

  copyRows(mayWait: boolean): typeof this.plan {
    const plan: typeof this.plan = [];
    if (mayWait && this.random(2) === 0) plan.push({ type: 'H' }, 'awaitCopy');
    for (let i = this.random(3); i > 0; i--) plan.push({ type: 'd' });
    plan.push({ type: this.random(4) === 0 ? 'f' : 'c' }, 'endOfCopy');
    return plan;
  }

  someName(): string {
    return this.random(3) === 0 ? '' : NAMES[this.random(NAMES.length)]!;
  }

  someRun(): Run {
    switch (this.random(9)) {
      case 0:
        return { does: 'empty' };
      case 1:
        return { does: 'copyOut' };
      case 2:
        return { does: this.random(2) === 0 ? 'fail' : 'failAfterRow' };
      case 3:
      case 4:
        return {
          does: 'copyIn',
          fails: (['never', 'never', 'before', 'start', 'row', 'end'] as const)[this.random(6)]!,
        };
      default:
        return { does: 'rows', rows: this.random(3) };
    }
  }

  /** A client message at the pooler, which translates what is about named statements. */
  send(request: Request): void {
    const isNamed = 'name' in request && request.name !== null && request.name !== '';
    if (isNamed) {
      this.sendNamed(request);
      return;
    }
    this.sent.push(request);
    if (request.type === 'S') this.segment++;
    const isCopy =
      (request.type === 'E' && request.run.does === 'copyIn') ||
      (request.type === 'Q' && request.runs.some((run) => run.does === 'copyIn'));
    if (isCopy) {
      this.sawCopyReply = false;
      this.sawError = this.hasFailed;
    }
    this.toServer(forward, request);
  }

  sendNamed(request: Request & { type: 'P' | 'B' | 'D' | 'C' }): void {
    const name = request.name!;
    // Whether the name is taken when the server gets there hangs on what is not answered yet; a
    // client that reckons with it may be cut off where PostgreSQL would only report an error.
    const changedIn = this.changedIn.get(name) ?? -1;
    const isSure =
      changedIn === this.segment || changedIn < this.requests.syncsAnswered || this.isSilent;
    if (!isSure) return;
    const isTaken = this.clientTable.has(name);
    if (request.type === 'P' ? isTaken : !isTaken && request.type !== 'C') return;
    if (request.type === 'P' || request.type === 'C') this.changedIn.set(name, this.segment);

    this.sent.push(request);
    const bytes = encode(request);
    const { translator, clientTable: client, serverTable: server } = this;
    const answer =
      request.type === 'P'
        ? translator.onParse(client, server, bytes, 0, bytes.length)
        : request.type === 'B'
          ? translator.onBind(client, server, bytes, 0, bytes.length)
          : request.type === 'D'
            ? translator.onDescribe(client, server, bytes, 0, bytes.length)
            : translator.onClose(client, bytes, 0, bytes.length);
    assert.notEqual(answer.outcome, Outcome.refused, answer.text);
    for (const { type, statement } of answer.injected) {
      this.requests.push(type, swallow, statement);
      this.toBackend.push(
        type === ClientMessage.Parse
          ? { type: 'P', name: statement.serverName, text: textOf(statement) }
          : { type: 'C', name: statement.serverName },
      );
    }
    if (answer.outcome === Outcome.fake) {
      this.requests.push(KINDS[request.type], fake, answer.statement, name);
      this.passFakes();
    } else {
      const changes = request.type === 'P';
      this.toServer(
        forward,
        { ...request, name: answer.statement!.serverName },
        changes ? answer.statement : null,
        changes ? name : null,
      );
    }
  }

  toServer(
    action: RequestAction,
    request: Request,
    statement: PreparedStatement | null = null,
    name: string | null = null,
  ): void {
    if (request.type !== 'H' && request.type !== 'd') {
      this.requests.push(KINDS[request.type], action, statement, name);
    }
    this.toBackend.push(request);
  }

  onReply(reply: string): void {
    if (this.requests.onReply(reply.charCodeAt(0)) === ReplyAction.forward) this.receive(reply);
    this.translator.undo(this.requests.takeFailed(), this.clientTable, this.serverTable);
    this.passFakes();
    if (reply[0] === 'Z' && this.requests.size === 0 && !this.requests.isDoubtful) {
      // A pooler may now give the server to another client: nothing may still be owed.
      const owed = this.toBackend.filter(({ type }) => !'dcfH'.includes(type));
      assert.deepEqual(owed, [], 'free while requests are on their way');
      const late = this.toPooler.filter((other) => other !== 'N');
      assert.deepEqual(late, [], 'free while replies are on their way');
    }
  }

  passFakes(): void {
    for (let kind = this.requests.nextFake(); kind !== 0; kind = this.requests.nextFake()) {
      this.receive(kind === RequestKind.parse ? '1' : '3');
    }
  }

  receive(reply: string): void {
    this.received.push(reply);
    if (reply[0] === 'G') this.sawCopyReply = true;
    if (reply[0] === 'E') this.sawError = this.hasFailed = true;
    if (reply[0] === 'Z') this.hasFailed = false;
  }
}

const KINDS = {
  Q: RequestKind.query,
  F: RequestKind.functionCall,
  P: RequestKind.parse,
  B: RequestKind.bind,
  D: RequestKind.describe,
  E: RequestKind.execute,
  C: RequestKind.close,
  S: RequestKind.sync,
  c: RequestKind.copyDone,
  f: RequestKind.copyFail,
} as const;

test('every client gets exactly the replies that a direct connection gives', () => {
  const firstSeed = Math.floor(Math.random() * 1e9);
  let doubts = 0;
  let failures = 0;
  const rounds = 4000;
  for (let at = 0; at < rounds; at++) {
    const seed = firstSeed + at;
    const round = new Round(seededRandom(seed));
    try {
      round.run();
      const direct = new BackendModel();
      const expected = round.sent.flatMap((request) => direct.process(request));
      assert.deepEqual(round.received, expected);
      assert.equal(round.requests.size, 0, 'requests left');
      if (round.requests.isDoubtful) doubts++;
      if (expected.includes('E')) failures++;
      const onServer = [...round.serverTable].filter(
        (statement) => round.serverTable.presence(statement) === Presence.present,
      );
      for (const { serverName } of onServer) {
        assert.ok(round.backend.statements.has(serverName), `${serverName} is not on the server`);
      }
      for (const [serverName] of round.backend.statements) {
        assert.ok(
          [...round.serverTable].some((statement) => statement.serverName === serverName),
          `${serverName} is forgotten on the server`,
        );
      }
      for (const name of NAMES) {
        const statement = round.clientTable.get(name);
        const text = statement === undefined ? undefined : textOf(statement);
        assert.equal(text, direct.statements.get(name), `client's ${name}`);
      }
      round.clientTable.clear();
      round.serverTable.clear();
      assert.equal(round.registry.size, 0, 'statements left in the registry');
    } catch (error) {
      throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error });
    }
  }
  assert.ok(failures > rounds / 4 && failures < rounds, `${failures} rounds had an error`);
  assert.ok(doubts > 0 && doubts < rounds / 5, `${doubts} rounds ended in doubt`);
});

function textOf(statement: PreparedStatement): string {
  return statement.key.slice(0, statement.key.indexOf('\0'));
}

/** The message of a request about a named statement. */
function encode(request: Request & { type: 'P' | 'B' | 'D' | 'C' }): Buffer {
  const bodies = {
    P: () => `${request.name}\0${(request as { text: string }).text}\0\0\0`,
    B: () => `\0${request.name}\0\0\0\0\0\0\0`,
    D: () => `S${request.name}\0`,
    C: () => `S${request.name}\0`,
  };
  const body = Buffer.from(bodies[request.type]());
  const header = Buffer.alloc(5);
  header[0] = request.type.charCodeAt(0);
  header.writeInt32BE(4 + body.length, 1);
  return Buffer.concat([header, body]);
}

/** Mulberry32: whole numbers below `limit`, the same for the same seed. */
function seededRandom(seed: number): (limit: number) => number {
  let state = seed | 0;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % limit;
  };
}
