import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { giveToServer } from '../../test/support/account.ts';
import { type Keep, makeFolder, removeFolder } from '../../test/support/folders.ts';
import { preparePgfleet, type TestPgfleet } from '../../test/support/pgfleet.ts';
import { freePort, isPortFree } from '../../test/support/ports.ts';
import { configure, makeCluster, TestPostgres } from '../../test/support/postgres.ts';
import { postgresBin } from '../../test/support/postgres-files.ts';

/** PgBouncer's usual port. */
const USUAL_PORT = 6432;

const POSTGRES = 18;

const STATEMENTS = [
  "ALTER ROLE postgres PASSWORD 'postgres'",
  "CREATE ROLE demo LOGIN CREATEDB PASSWORD 'demo'",
  'CREATE DATABASE demo OWNER demo',
];

/** A PostgreSQL server, a fleet before it, and the folder that holds the files of both. */
export class Demo {
  readonly wantedPort = USUAL_PORT;
  #folder: string | null = null;
  #postgres: TestPostgres | null = null;
  #fleet: TestPgfleet | null = null;

  get folder(): string {
    return there(this.#folder);
  }

  get postgres(): TestPostgres {
    return there(this.#postgres);
  }

  get fleet(): TestPgfleet {
    return there(this.#fleet);
  }

  /** Starts both; `onFailure` is told when one of them ends without being asked to. */
  async start(onFailure: (why: string) => void): Promise<void> {
    const folder = await makeFolder('demo');
    this.#folder = folder;
    const bin = await postgresBin(POSTGRES, this.#keep);
    const server = new TestPostgres(POSTGRES, await freePort(), join(folder, 'postgres'), bin);
    await makeOwned(server.folder);
    await makeCluster(bin, server.folder, STATEMENTS);
    await configure(server, {});
    this.#postgres = server;
    await server.start({ detached: true });

    const port = (await isPortFree(USUAL_PORT)) ? USUAL_PORT : await freePort();
    const fleet = await preparePgfleet({
      postgres: server,
      size: 'auto',
      folder: await makeOwned(join(folder, 'pgfleet')),
      keep: this.#keep,
      authFile: { demo: 'demo' },
      settings: {
        listen_port: port,
        auth_type: 'scram-sha-256',
        admin_users: 'demo',
        max_client_conn: 1000,
      },
    });
    this.#fleet = fleet;
    await fleet.start({ detached: true });
    fleet.onceEnded(() => onFailure(`the fleet has ended:\n${fleet.log()}`));
    server.onceEnded(() => onFailure(`PostgreSQL has ended:\n${server.log()}`));
  }

  /** Ends what was started, the fleet first, and removes the folder. */
  async end(): Promise<void> {
    try {
      const problems = (await this.#fleet?.end()) ?? [];
      if (problems.length > 0) throw new Error(`pgfleet: ${problems.join('; ')}`);
    } finally {
      await this.#postgres?.dispose();
      if (this.#folder !== null) await removeFolder(this.#folder);
    }
  }

  /** Copies of files that the servers' account cannot reach live in the demo's own folder. */
  readonly #keep: Keep = async (name, fill) => {
    const target = await makeOwned(join(this.folder, name));
    await fill(target);
    return target;
  };
}

async function makeOwned(folder: string): Promise<string> {
  await mkdir(folder, { mode: 0o755 });
  await giveToServer(folder);
  return folder;
}

function there<T>(value: T | null): T {
  if (value === null) throw new Error('the demo has not started');
  return value;
}
