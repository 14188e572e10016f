import type { LocalBackend, LocalBackendFactory, LocalPeer } from '../client/local-backend.ts';
import type { Config } from '../config/config.ts';
import { ConsoleSession } from './console-session.ts';
import type { ControlPort } from './control.ts';
import { Fleet, type FleetTransport } from './fleet.ts';
import type { Rights } from './plan.ts';
import type { SnapshotSource, WorkerSnapshot } from './snapshot.ts';

export interface ConsoleOptions {
  /** The live rooms of this worker. */
  readonly source: SnapshotSource;
  /** The configuration in force. */
  readonly config: () => Config;
  /** How the other workers are asked. */
  readonly mesh: FleetTransport;
  /** How the launcher is asked. */
  readonly control: ControlPort;
}

/**
 * The virtual database `pgbouncer`: one console for the whole fleet, whichever worker a connection
 * lands on.
 */
export class ConsoleFactory implements LocalBackendFactory {
  readonly #fleet: Fleet;

  constructor({ source, config, mesh, control }: ConsoleOptions) {
    this.#fleet = new Fleet(source, config, mesh, control);
  }

  open(peer: LocalPeer, rights: Rights): LocalBackend {
    const fleet = this.#fleet;
    fleet.control.sessions(++fleet.sessions);
    return new ConsoleSession(peer, rights, fleet, () => {
      fleet.control.sessions(--fleet.sessions);
    });
  }

  /**
   * Answers what the console of another worker asks over the mesh (`kind` is `snapshot`).
   *
   * @throws ZodError when the request is anything else
   */
  answer(request: unknown): WorkerSnapshot {
    return this.#fleet.answer(request);
  }
}
