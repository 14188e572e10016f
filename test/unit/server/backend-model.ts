/**
 * The protocol side of a PostgreSQL backend, without a database: what it answers, in which order,
 * what it skips after an error, and what it ignores during and after COPY (PostgreSQL documentation,
 * "Message Flow"; the comments there about Sync during COPY and late CopyData).
 */

/** What one statement does when it runs. */
export type Run =
  | { readonly does: 'rows'; readonly rows: number }
  | { readonly does: 'empty' | 'suspend' | 'fail' | 'failAfterRow' | 'copyOut' }
  | { readonly does: 'copyIn'; readonly fails: 'never' | 'before' | 'start' | 'row' | 'end' };

/** A client message; `id` comes back in its replies, so that mixed-up ones differ. */
export type Request =
  | { readonly type: 'Q'; readonly id: number; readonly runs: readonly Run[] }
  | { readonly type: 'F'; readonly id: number; readonly fails: boolean }
  | { readonly type: 'P'; readonly name: string; readonly text: string }
  | { readonly type: 'B'; readonly id: number; readonly name: string; readonly fails: boolean }
  | {
      readonly type: 'D';
      readonly id: number;
      readonly name: string | null;
      readonly fails: boolean;
    }
  | { readonly type: 'E'; readonly id: number; readonly run: Run }
  | { readonly type: 'C'; readonly name: string | null }
  | { readonly type: 'S'; readonly id: number; readonly fails: boolean }
  | { readonly type: 'H' | 'd' | 'c' | 'f' };

export class BackendModel {
  /** Name to text; the unnamed statement is not kept, it always exists. */
  readonly statements = new Map<string, string>();
  /** Texts starting so are rejected by Parse and fail when used. */
  readonly isBroken = (text: string): boolean => text.startsWith('broken');
  #replies: string[] = [];
  #isSkipping = false;
  #copy: {
    readonly fails: string;
    readonly restOfQuery: readonly Run[] | null;
    id: number;
  } | null = null;

  /** The replies, the type as first character and what tells it apart behind it. */
  process(request: Request): string[] {
    this.#replies = [];
    if (this.#copy) this.#duringCopy(request);
    else if (!this.#isSkipping || request.type === 'S') this.#outsideCopy(request);
    return this.#replies;
  }

  #outsideCopy(request: Request): void {
    switch (request.type) {
      case 'Q':
        this.#runQuery(request.id, request.runs);
        break;
      case 'F':
        this.#reply(request.fails ? 'E' : `V${request.id}`, 'Z');
        break;
      case 'P':
        if (this.isBroken(request.text) || this.statements.has(request.name)) this.#fail();
        else {
          if (request.name !== '') this.statements.set(request.name, request.text);
          this.#reply('1');
        }
        break;
      case 'B':
        if (request.fails || !this.#isUsable(request.name)) this.#fail();
        else this.#reply('2');
        break;
      case 'D':
        if (request.fails || (request.name !== null && !this.#isUsable(request.name))) this.#fail();
        else {
          if (request.name !== null) this.#reply(`t${request.id}`);
          this.#reply(request.id % 2 === 0 ? `T${request.id}` : 'n');
        }
        break;
      case 'E':
        this.#execute(request.id, request.run);
        break;
      case 'C':
        if (request.name !== null) this.statements.delete(request.name);
        this.#reply('3');
        break;
      case 'S':
        this.#isSkipping = false;
        if (request.fails) this.#reply('E');
        this.#reply('Z');
        break;
      default:
        // Flush has no reply; late CopyData, CopyDone and CopyFail are ignored.
        break;
    }
  }

  #duringCopy(request: Request): void {
    const copy = this.#copy!;
    switch (request.type) {
      case 'd':
        if (copy.fails === 'row') this.#failCopy();
        break;
      case 'c':
        if (copy.fails === 'end') this.#failCopy();
        else {
          this.#copy = null;
          this.#reply(`C${copy.id}`);
          if (copy.restOfQuery) this.#runQuery(copy.id, copy.restOfQuery);
        }
        break;
      case 'f':
        this.#failCopy();
        break;
      case 'S':
      case 'H':
        break;
      default:
        throw new Error(`the test sent ${request.type} during COPY, which ends a connection`);
    }
  }

  #failCopy(): void {
    const isQuery = this.#copy!.restOfQuery !== null;
    this.#copy = null;
    if (isQuery) this.#reply('E', 'Z');
    else this.#fail();
  }

  #runQuery(id: number, runs: readonly Run[]): void {
    for (const [at, run] of runs.entries()) {
      if (run.does === 'rows') this.#reply(`T${id}`);
      if (!this.#run(id, run)) {
        this.#reply('E', 'Z');
        return;
      }
      if (run.does === 'copyIn') {
        this.#copy = { fails: run.fails, restOfQuery: runs.slice(at + 1), id };
        if (run.fails === 'start') this.#failCopy();
        return;
      }
    }
    this.#reply('Z');
  }

  #execute(id: number, run: Run): void {
    if (!this.#run(id, run)) {
      this.#fail();
    } else if (run.does === 'copyIn') {
      this.#copy = { fails: run.fails, restOfQuery: null, id };
      if (run.fails === 'start') this.#failCopy();
    }
  }

  /** False when it fails. */
  #run(id: number, run: Run): boolean {
    switch (run.does) {
      case 'rows':
        for (let i = 0; i < run.rows; i++) this.#reply(`D${id}.${i}`);
        this.#reply('N', `C${id}`);
        return true;
      case 'empty':
        this.#reply('I');
        return true;
      case 'suspend':
        this.#reply(`D${id}`, 's');
        return true;
      case 'copyOut':
        this.#reply('H', `d${id}`, `d${id}`, 'c', `C${id}`);
        return true;
      case 'copyIn':
        if (run.fails === 'before') return false;
        this.#reply('G');
        return true;
      case 'failAfterRow':
        this.#reply(`D${id}`);
        return false;
      default:
        return false;
    }
  }

  #isUsable(name: string): boolean {
    if (name === '') return true;
    const text = this.statements.get(name);
    return text !== undefined && !this.isBroken(text);
  }

  #fail(): void {
    this.#isSkipping = true;
    this.#reply('E');
  }

  #reply(...replies: string[]): void {
    this.#replies.push(...replies);
  }
}
