import type { Config } from '../config/config.ts';
import { withConsole } from './console-rows.ts';
import type { ControlPort } from './control.ts';
import { configRows } from './show-config.ts';
import {
  type SnapshotPart,
  type SnapshotRequest,
  type SnapshotSource,
  snapshotRequestSchema,
  type WorkerSnapshot,
  workerSnapshotSchema,
} from './snapshot.ts';

/** How the other workers are asked; the mesh is one. */
export interface FleetTransport {
  requestAll(payload: unknown): Promise<Map<number, { value: unknown } | { error: string }>>;
}

/** What the fleet said. */
export interface FleetAnswer {
  /** In the order of the workers' numbers; this worker's is always there. */
  readonly snapshots: readonly WorkerSnapshot[];
  /** Workers without an answer, and why. */
  readonly missing: ReadonlyMap<number, string>;
}

/** The fleet as the console of one worker sees it: its own rooms and what the others answer. */
export class Fleet {
  /** Console sessions open in this worker. */
  sessions = 0;
  readonly config: () => Config;
  readonly control: ControlPort;
  readonly #source: SnapshotSource;
  readonly #transport: FleetTransport;

  constructor(
    source: SnapshotSource,
    config: () => Config,
    transport: FleetTransport,
    control: ControlPort,
  ) {
    this.control = control;
    this.#source = source;
    this.config = config;
    this.#transport = transport;
  }

  /** This worker's own snapshot. */
  own(parts: readonly SnapshotPart[]): WorkerSnapshot {
    return {
      ...withConsole(this.#source.snapshot(parts), this.sessions),
      config: parts.includes('config') ? configRows(this.config()) : [],
    };
  }

  /** Snapshots of all workers. A worker that fails to answer is named, never an exception. */
  async collect(parts: readonly SnapshotPart[]): Promise<FleetAnswer> {
    const request: SnapshotRequest = { kind: 'snapshot', parts: [...parts] };
    const answers = await this.#transport.requestAll(request);
    const snapshots = [this.own(parts)];
    const missing = new Map<number, string>();
    for (const [workerId, answer] of answers) {
      if ('error' in answer) {
        missing.set(workerId, answer.error);
        continue;
      }
      const checked = workerSnapshotSchema.safeParse(answer.value);
      if (checked.success && checked.data.process === workerId) snapshots.push(checked.data);
      else missing.set(workerId, `worker ${workerId} sent a snapshot that cannot be read`);
    }
    snapshots.sort((a, b) => a.process - b.process);
    return { snapshots, missing };
  }

  /**
   * Answers another worker's request for a snapshot.
   *
   * @throws ZodError when it asks for something else
   */
  answer(request: unknown): WorkerSnapshot {
    const { parts } = snapshotRequestSchema.parse(request);
    const snapshot = this.own(parts);
    // Parts that were not asked for would only make the answer long.
    const asked = (part: SnapshotPart): boolean => parts.includes(part);
    return {
      ...snapshot,
      clients: asked('clients') ? snapshot.clients : [],
      servers: asked('servers') ? snapshot.servers : [],
      pools: asked('pools') ? snapshot.pools : [],
      databases: asked('databases') ? snapshot.databases : [],
      users: asked('users') ? snapshot.users : [],
      stats: asked('stats') ? snapshot.stats : [],
      dns_hosts: asked('dns') ? snapshot.dns_hosts : [],
      dns_zones: asked('dns') ? snapshot.dns_zones : [],
      sockets: asked('sockets') ? snapshot.sockets : [],
      descriptors: asked('descriptors') ? snapshot.descriptors : [],
      peerPools: asked('peerPools') ? snapshot.peerPools : [],
      running: asked('process') ? snapshot.running : null,
    };
  }
}
