import { type Column, noticeResponse } from '../wire/encode.ts';
import type { Command } from './command.ts';
import { disable, enable } from './disable.ts';
import {
  EMPTY_PLAN,
  planDriverSet,
  planDriverShow,
  planDriverStatement,
} from './driver-statements.ts';
import type { Fleet, FleetAnswer } from './fleet.ts';
import { parseStatement, type Statement } from './grammar.ts';
import { kill, killClient } from './kill.ts';
import { pause, resume } from './pause.ts';
import { reconnect, waitClose } from './reconnect.ts';
import { reload } from './reload.ts';
import { int4, type Row } from './result.ts';
import { MAX_STATEMENTS, statementsIn } from './script.ts';
import { planSet } from './set.ts';
import { showClients, showServers } from './show-clients.ts';
import { showConfig } from './show-config.ts';
import { showDatabases } from './show-databases.ts';
import { showDnsHosts, showDnsZones } from './show-dns.ts';
import { showFds } from './show-fds.ts';
import { showFleet } from './show-fleet.ts';
import { HELP_DETAIL } from './show-help.ts';
import { showLists } from './show-lists.ts';
import { showMem } from './show-mem.ts';
import { showPeerPools } from './show-peer-pools.ts';
import { showPeers } from './show-peers.ts';
import { showPools } from './show-pools.ts';
import { showSessionLeaks, showStalePlans } from './show-sessions.ts';
import { showActiveSockets, showSockets } from './show-sockets.ts';
import { showState } from './show-state.ts';
import { showStats, showStatsAverages, showStatsTotals, showTotals } from './show-stats.ts';
import { showUsers } from './show-users.ts';
import { showVersion } from './show-version.ts';
import { shutdown } from './shutdown.ts';
import { suspend } from './suspend.ts';
import type { Topic } from './topic.ts';

export type Rights = 'admin' | 'stats';

/** What a command answers. */
export interface Answer {
  /** Whole NoticeResponses, sent first. */
  readonly notices: readonly Buffer[];
  readonly rows: readonly Row[];
  /** Null: the query was empty. */
  readonly tag: string | null;
}

/** A command that was understood and may be run; it can be run more than once. */
export interface Plan {
  /** Null: the answer is no result set. */
  readonly columns: readonly Column[] | null;
  /** The answer may be long in coming: what follows in the same session is answered meanwhile. */
  readonly isDeferred?: boolean;
  /**
   * `signal` is aborted when the session is over.
   *
   * @throws CommandError that is the answer
   */
  readonly run: (signal: AbortSignal) => Answer | Promise<Answer>;
}

/** `sqlstate` is PgBouncer's usual one when it is left out. */
export type Planned = Plan | { readonly error: string; readonly sqlstate?: string };

const NOBODY: ReadonlyMap<number, string> = new Map();
const ADMIN_NEEDED = { error: 'admin access needed' };
const TOO_MANY = {
  error: `more than ${MAX_STATEMENTS} statements in one query`,
  sqlstate: '54000',
};
/** PostgreSQL's words for it. */
const TWO_IN_ONE = {
  error: 'cannot insert multiple commands into a prepared statement',
  sqlstate: '42601',
};

const TOPICS: Readonly<Record<string, Topic>> = {
  ACTIVE_SOCKETS: showActiveSockets,
  CLIENTS: showClients,
  CONFIG: showConfig,
  DATABASES: showDatabases,
  DNS_HOSTS: showDnsHosts,
  DNS_ZONES: showDnsZones,
  FDS: showFds,
  FLEET: showFleet,
  LISTS: showLists,
  MEM: showMem,
  PEERS: showPeers,
  PEER_POOLS: showPeerPools,
  POOLS: showPools,
  SERVERS: showServers,
  SOCKETS: showSockets,
  SESSION_LEAKS: showSessionLeaks,
  STALE_PLANS: showStalePlans,
  STATE: showState,
  STATS: showStats,
  STATS_AVERAGES: showStatsAverages,
  STATS_TOTALS: showStatsTotals,
  TOTALS: showTotals,
  USERS: showUsers,
  VERSION: showVersion,
};

/** Commands that change what the fleet does. */
const COMMANDS: Readonly<Record<string, Command>> = {
  DISABLE: disable,
  ENABLE: enable,
  KILL: kill,
  KILL_CLIENT: killClient,
  PAUSE: pause,
  RECONNECT: reconnect,
  RELOAD: reload,
  RESUME: resume,
  SHUTDOWN: shutdown,
  SUSPEND: suspend,
  WAIT_CLOSE: waitClose,
};

/**
 * Understands the text of a simple Query, of which `query` holds the bytes without a NUL: the
 * statements to run one after the other, up to and with the first that is none.
 */
export function planScript(query: Buffer, rights: Rights, fleet: Fleet): Planned[] {
  const whole = planStatement(query, rights, fleet);
  if (whole !== null) return [whole];
  const statements = statementsIn(query.toString('latin1'));
  if (statements.length === 0) return [EMPTY_PLAN];
  if (statements.length > MAX_STATEMENTS) return [TOO_MANY];
  const plans: Planned[] = [];
  for (const statement of statements) {
    const bytes = Buffer.from(statement, 'latin1');
    const planned = planStatement(bytes, rights, fleet);
    // Of one statement all of the text is shown, with its blanks and comments, as PgBouncer does.
    plans.push(planned ?? invalid(statements.length === 1 ? query : bytes));
    if (planned === null || 'error' in planned) break;
  }
  return plans;
}

/** Understands the text of a Parse, which may hold one statement. */
export function planQuery(query: Buffer, rights: Rights, fleet: Fleet): Planned {
  const whole = planStatement(query, rights, fleet);
  if (whole !== null) return whole;
  const [first, second] = statementsIn(query.toString('latin1'));
  if (first === undefined) return EMPTY_PLAN;
  if (second !== undefined) return TWO_IN_ONE;
  return planStatement(Buffer.from(first, 'latin1'), rights, fleet) ?? invalid(query);
}

/** Null when it is no statement of the console's. */
function planStatement(query: Buffer, rights: Rights, fleet: Fleet): Planned | null {
  const text = query.toString('latin1');
  const statement = parseStatement(text);
  if (statement.kind === 'tooLong') return { error: 'bad arguments' };
  if (statement.kind === 'set') {
    const { key, value } = statement;
    const plan = planDriverSet(key);
    if (plan !== null) return plan;
    return rights === 'admin' ? planSet(key, value, fleet) : ADMIN_NEEDED;
  }
  const plan = statement.kind === 'invalid' ? null : planCommand(statement, rights, fleet);
  return plan ?? planDriverStatement(text);
}

function invalid(query: Buffer): Planned {
  return { error: `invalid command '${query.toString()}', use SHOW HELP;` };
}

/** Null when there is no such command. */
function planCommand(
  { word, argument, isByProcess }: Statement & { kind: 'command' },
  rights: Rights,
  fleet: Fleet,
): Planned | null {
  if (word === 'SHOW' || word === 'SELECT') {
    return argument === null ? null : planShow(argument, isByProcess, rights, fleet);
  }
  const command = isByProcess ? undefined : own(COMMANDS, word);
  const plan = command?.(argument, fleet) ?? null;
  // What is no argument of a command is no command, whoever gives it.
  return plan === null || rights === 'admin' ? plan : ADMIN_NEEDED;
}

function planShow(
  argument: string,
  isByProcess: boolean,
  rights: Rights,
  fleet: Fleet,
): Planned | null {
  const name = argument.toUpperCase();
  const topic = own(TOPICS, name);
  if (topic?.isForAdmins === true && rights !== 'admin') return ADMIN_NEEDED;
  if (isByProcess) return topic?.hasProcesses === true ? planProcesses(topic, fleet) : null;
  if (topic !== undefined) return planTopic(topic, fleet);
  if (name === 'HELP') {
    const notices = [noticeResponse('Console usage', HELP_DETAIL)];
    return { columns: null, run: () => ({ notices, rows: [], tag: 'SHOW' }) };
  }
  return planDriverShow(name);
}

function planTopic(topic: Topic, fleet: Fleet): Plan {
  const { columns, parts } = topic;
  if (topic.isSameEverywhere) {
    const run = (): Answer => ({
      notices: [],
      rows: topic.rows({
        snapshots: [fleet.own(parts)],
        config: fleet.config(),
        missing: NOBODY,
      }),
      tag: 'SHOW',
    });
    return { columns, run };
  }
  return {
    columns,
    run: async () => {
      const { snapshots, missing } = await fleet.collect(parts);
      return {
        notices: noticeOf(missing),
        rows: topic.rows({ snapshots, config: fleet.config(), missing }),
        tag: 'SHOW',
      };
    },
  };
}

/** `BY PROCESS`: the same table for each worker, its number in a column before the others. */
function planProcesses(topic: Topic, fleet: Fleet): Plan {
  return {
    columns: [int4('process'), ...topic.columns],
    run: async () => {
      const { snapshots, missing } = await fleet.collect(topic.parts);
      const config = fleet.config();
      const rows = snapshots.flatMap((snapshot) =>
        topic
          .rows({ snapshots: [snapshot], config, missing: NOBODY })
          .map((row) => [snapshot.process, ...row]),
      );
      return { notices: noticeOf(missing), rows, tag: 'SHOW' };
    },
  };
}

function noticeOf(missing: FleetAnswer['missing']): Buffer[] {
  if (missing.size === 0) return [];
  const ids = [...missing.keys()].sort((a, b) => a - b).join(', ');
  const who = missing.size === 1 ? `worker ${ids}` : `workers ${ids}`;
  return [
    noticeResponse(
      `no answer from ${who}, whose part is missing`,
      [...missing.values()].join('\n'),
    ),
  ];
}

/** The entry of that name, and never one that all objects inherit. */
function own<T>(table: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}
