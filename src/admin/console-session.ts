import type { LocalBackend, LocalPeer } from '../client/local-backend.ts';
import { PROTOCOL_VIOLATION } from '../errors.ts';
import { log } from '../log/logger.ts';
import { Ring } from '../util/ring.ts';
import { ClientMessage } from '../wire/codes.ts';
import { endOfString } from '../wire/decode.ts';
import {
  CLOSE_COMPLETE,
  type Column,
  commandComplete,
  errorResponse,
  PARSE_COMPLETE,
  READY_IDLE,
} from '../wire/encode.ts';
import { CommandError } from './control.ts';
import {
  BIND_COMPLETE,
  BROKEN,
  EMPTY_QUERY,
  ExtendedError,
  ExtendedState,
  PORTAL_SUSPENDED,
  type Portal,
} from './extended.ts';
import type { Fleet } from './fleet.ts';
import {
  type Answer,
  type Plan,
  type Planned,
  planQuery,
  planScript,
  type Rights,
} from './plan.ts';
import { describeRows, encodeRows, type Formats, type Row } from './result.ts';
import { PGBOUNCER_VERSION } from './show-version.ts';

/** Messages, and bytes of them, that may wait while an answer is being made. */
const MAX_QUEUED = 1000;
const MAX_QUEUED_BYTES = 1 << 20;
/** Commands whose answers may be awaited side by side; one more holds up what follows it. */
const MAX_DEFERRED = 16;

/** ParameterStatus of PgBouncer's console. */
const CONSOLE_PARAMETERS: readonly (readonly [string, string])[] = [
  ['server_version', `${PGBOUNCER_VERSION}/bouncer`],
  ['client_encoding', 'UTF8'],
  ['server_encoding', 'UTF8'],
  ['DateStyle', 'ISO'],
  ['TimeZone', 'GMT'],
  ['standard_conforming_strings', 'on'],
  ['is_superuser', 'on'],
];

interface Waiting {
  readonly type: number;
  readonly body: Buffer;
}

/**
 * One session of the console. Messages are dealt with one at a time in the order they came: while
 * an answer waits for the other workers, what arrives is queued. As in PgBouncer, a command that waits
 * for the fleet to come to a rest (PAUSE) does not hold up what follows it, and is answered later.
 */
export class ConsoleSession implements LocalBackend {
  readonly parameters = CONSOLE_PARAMETERS;
  readonly #peer: LocalPeer;
  readonly #rights: Rights;
  readonly #fleet: Fleet;
  readonly #onEnd: () => void;
  readonly #extended = new ExtendedState();
  readonly #queue = new Ring<Waiting>();
  #queuedBytes = 0;
  #isBusy = false;
  #deferred = 0;
  /** Aborted when the session is over. */
  readonly #ending = new AbortController();
  #isOver = false;
  /** After an error in the extended protocol nothing counts until Sync. */
  #isSkipping = false;

  /** @param onEnd is called once, when it is over */
  constructor(peer: LocalPeer, rights: Rights, fleet: Fleet, onEnd: () => void) {
    this.#peer = peer;
    this.#rights = rights;
    this.#fleet = fleet;
    this.#onEnd = onEnd;
  }

  onMessage(type: number, body: Buffer): void {
    if (this.#isOver) return;
    if (!this.#isBusy) {
      this.#handle(type, body);
      return;
    }
    this.#queuedBytes += body.length;
    if (this.#queue.size >= MAX_QUEUED || this.#queuedBytes > MAX_QUEUED_BYTES) {
      this.#fatal('too many messages sent ahead of their answers');
      return;
    }
    this.#queue.push({ type, body: Buffer.from(body) });
  }

  onClose(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#queue.clear();
    this.#ending.abort();
    this.#onEnd();
  }

  #handle(type: number, body: Buffer): void {
    if (type === ClientMessage.Terminate) {
      this.onClose();
      this.#peer.close('close req');
      return;
    }
    if (this.#isSkipping && type !== ClientMessage.Sync) return;
    switch (type) {
      case ClientMessage.Query:
        this.#onQuery(body);
        break;
      case ClientMessage.Parse:
        this.#reply(
          this.#extended.parse(body, (query) => planQuery(query, this.#rights, this.#fleet)) ??
            PARSE_COMPLETE,
        );
        break;
      case ClientMessage.Bind:
        this.#reply(this.#extended.bind(body) ?? BIND_COMPLETE);
        break;
      case ClientMessage.Describe:
        this.#reply(this.#extended.describe(body));
        break;
      case ClientMessage.Execute:
        this.#onExecute(body);
        break;
      case ClientMessage.Close:
        this.#reply(this.#extended.close(body) ?? CLOSE_COMPLETE);
        break;
      case ClientMessage.Sync:
        this.#isSkipping = false;
        this.#extended.endTransaction();
        this.#peer.send(READY_IDLE);
        break;
      case ClientMessage.Flush:
      case ClientMessage.CopyData:
      case ClientMessage.CopyDone:
      case ClientMessage.CopyFail:
        break;
      case ClientMessage.FunctionCall:
        this.#error(PROTOCOL_VIOLATION, `unsupported packet type for admin console: ${type}`);
        this.#peer.send(READY_IDLE);
        this.#fatal('bad packet');
        break;
      default:
        this.#fatal('unknown pkt');
    }
  }

  #onQuery(body: Buffer): void {
    const end = endOfString(body, 0, body.length);
    if (end === -1 || this.#fleet.config().settings.disable_pqexec) {
      this.#fatal(end === -1 ? 'incomplete query' : 'PQexec disallowed');
      return;
    }
    this.#extended.onSimpleQuery();
    const [plan, ...more] = planScript(body.subarray(0, end), this.#rights, this.#fleet);
    if (more.length > 0) {
      this.#runScript([plan!, ...more]);
      return;
    }
    if ('error' in plan!) {
      this.#error(plan.sqlstate ?? PROTOCOL_VIOLATION, plan.error);
      this.#peer.send(READY_IDLE);
      return;
    }
    const onAnswer = (answer: Answer): void => {
      this.#sendAnswer(plan!, answer);
      this.#peer.send(READY_IDLE);
    };
    const onRefusal = ({ sqlstate, message, detail }: CommandError): void => {
      this.#error(sqlstate, message, detail);
      this.#peer.send(READY_IDLE);
    };
    if (plan!.isDeferred === true && this.#deferred < MAX_DEFERRED) {
      this.#defer(plan!, onAnswer, onRefusal);
    } else {
      this.#run(plan!, onAnswer, onRefusal);
    }
  }

  /**
   * Runs several statements of one Query, each when the one before it has been answered, PAUSE too;
   * an error ends them. One ReadyForQuery is behind all of them.
   */
  #runScript(plans: readonly Planned[]): void {
    this.#isBusy = true;
    this.#script(plans)
      .then(() => {
        this.#isBusy = false;
        this.#handleQueue();
      })
      .catch((error: unknown) => this.#fail(error));
  }

  async #script(plans: readonly Planned[]): Promise<void> {
    for (const plan of plans) {
      const answer = await this.#answerOf(plan);
      if (this.#isOver) return;
      if (answer instanceof CommandError) {
        this.#error(answer.sqlstate, answer.message, answer.detail);
        break;
      }
      this.#sendAnswer(plan as Plan, answer);
    }
    this.#peer.send(READY_IDLE);
  }

  async #answerOf(plan: Planned): Promise<Answer | CommandError> {
    if ('error' in plan) return new CommandError(plan.error, plan.sqlstate);
    try {
      return await plan.run(this.#ending.signal);
    } catch (error) {
      if (error instanceof CommandError) return error;
      throw error;
    }
  }

  #sendAnswer(plan: Plan, answer: Answer): void {
    for (const notice of answer.notices) this.#peer.send(notice);
    if (plan.columns !== null) {
      this.#peer.send(describeRows(plan.columns, null));
      this.#sendRows(plan.columns, answer.rows, null);
    }
    this.#sendTag(answer.tag);
  }

  #sendTag(tag: string | null): void {
    this.#peer.send(tag === null ? EMPTY_QUERY : commandComplete(tag));
  }

  #onExecute(body: Buffer): void {
    const found = this.#extended.execute(body);
    if (found === BROKEN || found instanceof ExtendedError) this.#reply(found);
    else if (found.portal.answer !== null) this.#sendPortal(found.portal, found.maxRows);
    else {
      const { portal, maxRows } = found;
      const onAnswer = (answer: Answer): void => {
        portal.answer = answer;
        for (const notice of answer.notices) this.#peer.send(notice);
        this.#sendPortal(portal, maxRows);
      };
      this.#run(portal.plan, onAnswer, ({ sqlstate, message, detail }) => {
        this.#isSkipping = true;
        this.#error(sqlstate, message, detail);
      });
    }
  }

  /** Sends the next rows of a portal that has its answer. */
  #sendPortal(portal: Portal, maxRows: number): void {
    const { rows, tag } = portal.answer!;
    const end = maxRows === 0 ? rows.length : portal.sentRows + maxRows;
    const next = rows.slice(portal.sentRows, end);
    portal.sentRows += next.length;
    if (portal.plan.columns !== null) this.#sendRows(portal.plan.columns, next, portal.formats);
    if (portal.sentRows < rows.length) this.#peer.send(PORTAL_SUSPENDED);
    else this.#sendTag(tag);
  }

  /** Sends what a step of the extended protocol answered, or its error. */
  #reply(outcome: Buffer | ExtendedError | typeof BROKEN): void {
    if (outcome === BROKEN) {
      this.#fatal('bad packet');
    } else if (outcome instanceof ExtendedError) {
      this.#isSkipping = true;
      this.#error(outcome.sqlstate, outcome.text);
    } else {
      this.#peer.send(outcome);
    }
  }

  /** Runs a command; until it is answered, everything else waits. */
  #run(
    plan: Plan,
    onAnswer: (answer: Answer) => void,
    onRefusal: (error: CommandError) => void,
  ): void {
    const result = plan.run(this.#ending.signal);
    if (!(result instanceof Promise)) {
      onAnswer(result);
      return;
    }
    this.#isBusy = true;
    this.#settle(result, onAnswer, onRefusal, () => {
      this.#isBusy = false;
      this.#handleQueue();
    });
  }

  /** Runs a command whose answer comes when it will, between the answers to others. */
  #defer(
    plan: Plan,
    onAnswer: (answer: Answer) => void,
    onRefusal: (error: CommandError) => void,
  ): void {
    this.#deferred++;
    this.#settle(Promise.resolve(plan.run(this.#ending.signal)), onAnswer, onRefusal, () => {
      this.#deferred--;
    });
  }

  #settle(
    result: Promise<Answer>,
    onAnswer: (answer: Answer) => void,
    onRefusal: (error: CommandError) => void,
    onEnd: () => void,
  ): void {
    result
      .then(
        (answer) => {
          if (!this.#isOver) onAnswer(answer);
        },
        (error: unknown) => {
          if (!(error instanceof CommandError)) throw error;
          if (!this.#isOver) onRefusal(error);
        },
      )
      .then(onEnd)
      .catch((error: unknown) => this.#fail(error));
  }

  #handleQueue(): void {
    while (!this.#isBusy && !this.#isOver) {
      const next = this.#queue.shift();
      if (next === undefined) return;
      this.#queuedBytes -= next.body.length;
      this.#handle(next.type, next.body);
    }
  }

  #sendRows(columns: readonly Column[], rows: readonly Row[], formats: Formats | null): void {
    encodeRows(columns, rows, formats, (bytes) => this.#peer.send(bytes));
  }

  /** The text without a prefix and the line with one are both PgBouncer's. */
  #error(sqlstate: string, text: string, detail?: string): void {
    log.error(text);
    if (this.#fleet.config().settings.log_pooler_errors) {
      log.warning(this.#peer.prefixed(`pooler error: ${text}`));
    }
    this.#peer.send(errorResponse('ERROR', sqlstate, text, detail));
  }

  /** A bug of ours, which costs this session and no other. */
  #fail(error: unknown): void {
    const text = error instanceof Error ? error.stack : String(error);
    log.error(this.#peer.prefixed(`console: ${text}`));
    if (!this.#isOver) this.#fatal('failure');
  }

  #fatal(text: string): void {
    this.onClose();
    this.#peer.fatal(text);
  }
}
