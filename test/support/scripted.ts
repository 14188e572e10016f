import type { TestContext } from 'node:test';
import { type Crowd, crowded } from './crowd.ts';
import { type FakeConnection, type FakeServer, startFakeServer } from './fake-server.ts';
import type { Section } from './pooler.ts';
import { freePort } from './ports.ts';
import { type RuleCheck, type RuleNotes, rule } from './rule.ts';
import { until } from './until.ts';

/** The server of one test, which may be stopped and started again on the same port. */
export class Stage {
  readonly port: number;
  /** When each connection of the last start came, milliseconds of `performance.now()`. */
  readonly times: number[] = [];
  /** How many connections `turn` lets go on. */
  admitted = 0;
  readonly #script: StageScript;
  #server: FakeServer | null = null;

  constructor(port: number, script: StageScript) {
    this.port = port;
    this.#script = script;
  }

  /** Connections since the last start, in the order they came. */
  get connections(): readonly FakeConnection[] {
    return this.#server?.connections ?? [];
  }

  /** Waits until the check has admitted so many connections as there were up to this one. */
  async turn(connection: FakeConnection): Promise<void> {
    await until(
      'the connection is admitted',
      () => connection.isClosed || this.admitted > connection.index,
    );
  }

  async up(): Promise<void> {
    this.times.length = 0;
    this.#server = await startFakeServer((connection) => {
      this.times.push(performance.now());
      return this.#script(connection, this);
    }, this.port);
  }

  async down(): Promise<void> {
    const server = this.#server;
    this.#server = null;
    await server?.stop();
  }
}

type StageScript = (connection: FakeConnection, stage: Stage) => Promise<void>;

/** What a rule with a scripted server checks. */
type StageCheck = (crowd: Crowd, stage: Stage) => Promise<void>;

interface StageOptions {
  readonly settings: Section;
  readonly users?: Readonly<Record<string, string>>;
  /** Each connection runs it; an error of it fails the test. */
  readonly script: StageScript;
  /** The server does not run until the check starts it. */
  readonly isDown?: boolean;
}

/** Registers a rule about the database `app` on a scripted server, one for each test. */
export function scripted(
  name: string,
  options: StageOptions,
  check: StageCheck,
  notes: Pick<RuleNotes, 'since'> & {
    readonly differs?: { readonly because: string; readonly check?: StageCheck };
  } = {},
): void {
  const stages = new Map<TestContext, Stage>();
  const onStage =
    (checkIt: StageCheck): RuleCheck =>
    async (pooler, t) => {
      const stage = stages.get(t)!;
      try {
        await crowded((crowd) => checkIt(crowd, stage))(pooler, t);
      } finally {
        await stage.down();
      }
    };
  const { differs, ...others } = notes;
  rule(
    name,
    async (t) => {
      const stage = new Stage(await freePort(), options.script);
      stages.set(t, stage);
      if (options.isDown !== true) await stage.up();
      const { settings, users = {} } = options;
      return { databases: { app: `host=127.0.0.1 port=${stage.port}` }, settings, users };
    },
    onStage(check),
    differs === undefined
      ? others
      : {
          ...others,
          differs:
            differs.check === undefined
              ? { because: differs.because }
              : { because: differs.because, check: onStage(differs.check) },
        },
  );
}
