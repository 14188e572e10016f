import { PROTOCOL_VIOLATION } from '../errors.ts';
import { ServerMessage } from '../wire/codes.ts';
import { MessageWriter } from '../wire/encode.ts';
import { BodyReader } from './body-reader.ts';
import type { Answer, Plan, Planned } from './plan.ts';
import { describeRows, type Formats } from './result.ts';

/**
 * Prepared statements and portals of one console session: PgBouncer's console has none, but drivers
 * that speak only the extended protocol (JDBC, psycopg 3) could not look at it otherwise.
 * Commands take no parameters. Errors are PostgreSQL's.
 */

const MAX_STATEMENTS = 256;
/** A portal that is read in pieces holds its whole answer, so few may be open. */
const MAX_PORTALS = 16;

const writer = new MessageWriter();
export const BIND_COMPLETE = writer.begin(ServerMessage.BindComplete).end();
export const EMPTY_QUERY = writer.begin(ServerMessage.EmptyQueryResponse).end();
export const PORTAL_SUSPENDED = writer.begin(ServerMessage.PortalSuspended).end();
const NO_DATA = writer.begin(ServerMessage.NoData).end();
const NO_PARAMETERS = writer.begin(ServerMessage.ParameterDescription).int16(0).end();

export interface Portal {
  readonly plan: Plan;
  /** Null: all columns as text. */
  readonly formats: Formats | null;
  /** The answer once it was executed, and how many of its rows were sent. */
  answer: Answer | null;
  sentRows: number;
}

/** An error in a message that is well formed. */
export class ExtendedError {
  readonly sqlstate: string;
  readonly text: string;

  constructor(sqlstate: string, text: string) {
    this.sqlstate = sqlstate;
    this.text = text;
  }
}

/** The body of the message is not what its type promises. */
export const BROKEN = Symbol('broken');

export class ExtendedState {
  readonly #statements = new Map<string, Plan>();
  readonly #portals = new Map<string, Portal>();

  /** Parse. `plan` understands the query text. */
  parse(body: Buffer, plan: (query: Buffer) => Planned): ExtendedError | typeof BROKEN | null {
    const reader = new BodyReader(body);
    const name = reader.cstring().toString();
    const query = reader.cstring();
    reader.skip(4 * reader.int16());
    if (!reader.isDone) return BROKEN;
    if (name !== '' && this.#statements.has(name)) {
      return new ExtendedError('42P05', `prepared statement "${name}" already exists`);
    }
    if (this.#statements.size >= MAX_STATEMENTS && name !== '') {
      return new ExtendedError('54000', 'too many prepared statements');
    }
    // A failed Parse leaves no unnamed statement behind.
    if (name === '') this.#statements.delete('');
    const planned = plan(query);
    if ('error' in planned) {
      return new ExtendedError(planned.sqlstate ?? PROTOCOL_VIOLATION, planned.error);
    }
    this.#statements.set(name, planned);
    return null;
  }

  bind(body: Buffer): ExtendedError | typeof BROKEN | null {
    const reader = new BodyReader(body);
    const portalName = reader.cstring().toString();
    const statementName = reader.cstring().toString();
    reader.skip(2 * reader.int16());
    const parameters = reader.int16();
    for (let i = 0; i < parameters && !reader.isBroken; i++) {
      const bytes = reader.int32();
      if (bytes !== -1) reader.skip(bytes);
    }
    const codeCount = reader.int16();
    const codes: number[] = [];
    for (let i = 0; i < codeCount && !reader.isBroken; i++) codes.push(reader.int16());
    if (!reader.isDone || parameters < 0 || codeCount < 0) return BROKEN;

    const plan = this.#statements.get(statementName);
    if (plan === undefined) return noStatement(statementName);
    if (parameters !== 0) {
      const needed = `prepared statement "${statementName}" requires 0`;
      return new ExtendedError(
        '08P01',
        `bind message supplies ${parameters} parameters, but ${needed}`,
      );
    }
    if (portalName !== '' && this.#portals.has(portalName)) {
      return new ExtendedError('42P03', `cursor "${portalName}" already exists`);
    }
    if (this.#portals.size >= MAX_PORTALS && portalName !== '') {
      return new ExtendedError('54000', 'too many portals');
    }
    const formats = formatsOf(codes, plan.columns?.length ?? 0);
    if (formats instanceof ExtendedError) return formats;
    this.#portals.set(portalName, { plan, formats, answer: null, sentRows: 0 });
    return null;
  }

  /** Describe: the messages that answer it. */
  describe(body: Buffer): Buffer | ExtendedError | typeof BROKEN {
    const reader = new BodyReader(body);
    const kind = String.fromCharCode(reader.byte());
    const name = reader.cstring().toString();
    if (!reader.isDone) return BROKEN;
    if (kind === 'S') {
      const plan = this.#statements.get(name);
      if (plan === undefined) return noStatement(name);
      return Buffer.concat([NO_PARAMETERS, describePlan(plan, null)]);
    }
    if (kind !== 'P') return BROKEN;
    const portal = this.#portals.get(name);
    return portal === undefined ? noPortal(name) : describePlan(portal.plan, portal.formats);
  }

  /** Execute: the portal and how many rows are wanted, 0 meaning all. */
  execute(body: Buffer): { portal: Portal; maxRows: number } | ExtendedError | typeof BROKEN {
    const reader = new BodyReader(body);
    const name = reader.cstring().toString();
    const maxRows = reader.int32();
    if (!reader.isDone) return BROKEN;
    const portal = this.#portals.get(name);
    return portal === undefined ? noPortal(name) : { portal, maxRows: Math.max(maxRows, 0) };
  }

  /** Close; what does not exist is closed too. */
  close(body: Buffer): typeof BROKEN | null {
    const reader = new BodyReader(body);
    const kind = String.fromCharCode(reader.byte());
    const name = reader.cstring().toString();
    if (!reader.isDone || (kind !== 'S' && kind !== 'P')) return BROKEN;
    if (kind === 'S') this.#statements.delete(name);
    else this.#portals.delete(name);
    return null;
  }

  /** Sync: portals end with their transaction, of which the console has only implicit ones. */
  endTransaction(): void {
    this.#portals.clear();
  }

  /** A simple Query takes the place of the unnamed statement. */
  onSimpleQuery(): void {
    this.#statements.delete('');
    this.#portals.clear();
  }
}

function describePlan(plan: Plan, formats: Formats | null): Buffer {
  return plan.columns === null ? NO_DATA : describeRows(plan.columns, formats);
}

/** One code holds for all columns, none means text. */
function formatsOf(codes: readonly number[], columns: number): Formats | null | ExtendedError {
  const wrong = codes.find((code) => code !== 0 && code !== 1);
  if (wrong !== undefined) return new ExtendedError('22023', `unsupported format code: ${wrong}`);
  if (codes.length > 1 && codes.length !== columns) {
    return new ExtendedError(
      '08P01',
      `bind message has ${codes.length} result formats but query has ${columns} columns`,
    );
  }
  if (codes.every((code) => code === 0)) return null;
  return codes.length === 1 ? new Array<number>(columns).fill(codes[0]!) : codes;
}

function noStatement(name: string): ExtendedError {
  return new ExtendedError(
    '26000',
    name === ''
      ? 'unnamed prepared statement does not exist'
      : `prepared statement "${name}" does not exist`,
  );
}

function noPortal(name: string): ExtendedError {
  return new ExtendedError('34000', `portal "${name}" does not exist`);
}
