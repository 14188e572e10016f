import { createHash } from 'node:crypto';
import {
  accessSync,
  constants,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmdirSync,
  rmSync,
} from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { ConfigError } from '../errors.ts';
import { log } from '../log/logger.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';
import { hasListener } from './unix-listener.ts';

const SYSTEM_FOLDER = '/run/pgfleet';
const LAUNCHER_SOCKET = 'launcher.sock';
/** A worker's mesh socket, or the one with which it makes socket pairs. */
const WORKER_SOCKET = /^(?:worker|pair)-\d+\.sock$/;

/** Path of a worker's mesh socket. */
export function workerSocketPath(runtimeDir: string, workerId: number): string {
  return join(runtimeDir, `worker-${workerId}.sock`);
}

/**
 * The folder of a configuration file's fleet: `configured`, else one that the file's path, free of
 * links, picks under `/run/pgfleet`, or under the temporary folder where that cannot be written.
 * Nothing is created.
 */
export function runtimeDirOf(configured: string | null, realFile: string): string {
  if (configured !== null) return configured;
  const hash = hashOf(realFile);
  if (isUsable(SYSTEM_FOLDER)) return join(SYSTEM_FOLDER, hash);
  return join(ownFolder(process.getuid!()), hash);
}

/**
 * Where the launcher of a running fleet may listen: in the folder that `runtimeDirOf` gives, or gave
 * to another account.
 *
 * @param uids accounts that it may run as
 */
export function launcherSockets(
  configured: string | null,
  realFile: string,
  uids: readonly number[],
): string[] {
  const hash = hashOf(realFile);
  const folders =
    configured === null
      ? [join(SYSTEM_FOLDER, hash), ...uids.map((uid) => join(ownFolder(uid), hash))]
      : [configured];
  return [...new Set(folders)].map((folder) => join(folder, LAUNCHER_SOCKET));
}

function hashOf(realFile: string): string {
  return createHash('sha256').update(realFile).digest('hex').slice(0, 16);
}

/** The temporary folder is everybody's, so each account has a folder of its own there. */
function ownFolder(uid: number): string {
  return join(tmpdir(), `pgfleet-${uid}`);
}

/**
 * Creates the folder, private to this account. One that exists must be private already: a link,
 * another owner or a wider mode would let others answer in a worker's place. Throws ConfigError.
 */
export function createRuntimeDir(path: string, isConfigured: boolean): void {
  if (!isConfigured && !path.startsWith(SYSTEM_FOLDER)) createPrivate(dirname(path));
  createPrivate(path);
}

/** A hold on a runtime folder that no other launcher has at the same time. */
export class RuntimeClaim {
  readonly #path: string;
  readonly #server: net.Server;
  readonly #wasCreated: boolean;

  private constructor(path: string, server: net.Server, wasCreated: boolean) {
    this.#path = path;
    this.#server = server;
    this.#wasCreated = wasCreated;
  }

  /**
   * Creates the folder if need be and takes it. Throws ConfigError when a living launcher or workers
   * of an earlier one use it.
   *
   * @param onConnection has what comes in on the launcher's socket
   */
  static async take(
    path: string,
    isConfigured: boolean,
    onConnection: (socket: net.Socket) => void,
  ): Promise<RuntimeClaim> {
    const existed = lstatSync(path, { throwIfNoEntry: false }) !== undefined;
    createRuntimeDir(path, isConfigured);
    const server = await listenPrivately(join(path, `launcher-${process.pid}.sock`), onConnection);
    try {
      await link(path);
      await removeDeadWorkers(path);
    } catch (error) {
      server.close();
      throw error;
    }
    return new RuntimeClaim(path, server, !existed);
  }

  /** Removes the fleet's sockets, and the folder if it was created for them. */
  release(): void {
    this.#server.close();
    try {
      for (const name of readdirSync(this.#path)) {
        if (WORKER_SOCKET.test(name) || name === LAUNCHER_SOCKET) rmSync(join(this.#path, name));
      }
      if (this.#wasCreated) rmdirSync(this.#path);
    } catch (error) {
      if (osErrorCode(error) !== 'ENOTEMPTY') {
        log.warning(`could not clear runtime_dir ${this.#path}: ${osErrorText(error)}`);
      }
    }
  }
}

/** Whether folders can be made in a folder where nobody else could replace them. */
function isUsable(path: string): boolean {
  try {
    accessSync(path, constants.W_OK | constants.X_OK);
    const { uid, mode } = lstatSync(path);
    return (uid === 0 || uid === process.getuid!()) && (mode & 0o022) === 0;
  } catch {
    return false;
  }
}

function createPrivate(path: string): void {
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (osErrorCode(error) !== 'EEXIST') {
      throw new ConfigError(`could not create runtime_dir ${path}: ${osErrorText(error)}`);
    }
  }
  const found = lstatSync(path);
  if (!found.isDirectory()) throw new ConfigError(`runtime_dir ${path} is not a folder`);
  if (found.uid !== process.getuid!()) {
    throw new ConfigError(`runtime_dir ${path} belongs to another user`);
  }
  if ((found.mode & 0o077) !== 0) {
    throw new ConfigError(`runtime_dir ${path} is open to others, its mode must be 0700`);
  }
}

/** A socket that tells that its process lives. */
async function listenPrivately(
  path: string,
  onConnection: (socket: net.Socket) => void,
): Promise<net.Server> {
  rmSync(path, { force: true });
  const server = net.createServer(onConnection);
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      // The file is made during the call, so the mask need not outlast it.
      const mask = process.umask(0o077);
      server.listen(path, resolve);
      process.umask(mask);
    });
  } catch (error) {
    throw new ConfigError(`could not create ${path}: ${osErrorText(error)}`);
  }
  server.unref();
  return server;
}

/**
 * Gives the listening socket the name that only one launcher can have. `link` fails when the name
 * exists, so of two that start at once only one gets it.
 */
async function link(path: string): Promise<void> {
  const own = join(path, `launcher-${process.pid}.sock`);
  const shared = join(path, LAUNCHER_SOCKET);
  for (let attempt = 0; attempt < 3; attempt++) {
    try {
      linkSync(own, shared);
      rmSync(own);
      return;
    } catch (error) {
      if (osErrorCode(error) !== 'EEXIST') throw error;
    }
    if (await hasListener(shared)) break;
    // Another starter may have replaced the dead name since it was looked at. Moving it aside tells:
    // a name that turns out to be alive goes back.
    const aside = join(path, `launcher-${process.pid}.old`);
    try {
      renameSync(shared, aside);
    } catch (error) {
      if (osErrorCode(error) === 'ENOENT') continue;
      throw error;
    }
    const isAlive = await hasListener(aside);
    if (isAlive) renameSync(aside, shared);
    else rmSync(aside);
  }
  throw new ConfigError(`runtime_dir ${path} is in use, another instance running?`);
}

async function removeDeadWorkers(path: string): Promise<void> {
  for (const name of readdirSync(path)) {
    if (!WORKER_SOCKET.test(name)) continue;
    const socket = join(path, name);
    if (await hasListener(socket)) {
      rmSync(join(path, LAUNCHER_SOCKET));
      throw new ConfigError(`workers of an earlier instance still run in runtime_dir ${path}`);
    }
    rmSync(socket);
  }
}
