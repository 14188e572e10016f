import { type ChildProcess, spawn } from 'node:child_process';
import { log } from '../log/logger.ts';
import { osErrorCode, osErrorText } from '../log/os-error.ts';

/*
 * What systemd is told of the fleet (sd_notify(3), for units of Type=notify and notify-reload). Node
 * cannot write to the Unix datagram socket of NOTIFY_SOCKET, so each message is a `systemd-notify`,
 * which that socket's unit must listen to: NotifyAccess=all. `--pid` names the launcher, which is not
 * that program's parent once a new generation has taken over.
 */

const PROGRAM = 'systemd-notify';

/** The launcher's word to its service manager; nothing is done where there is none. */
export class Notify {
  readonly #isOn: boolean;
  readonly #program: string;
  /** One after the other, since the last state told is the one that counts. */
  readonly #queue: string[][] = [];
  #running: ChildProcess | null = null;
  #isMissing = false;

  constructor(environment: NodeJS.ProcessEnv = process.env, program: string = PROGRAM) {
    this.#isOn = (environment['NOTIFY_SOCKET'] ?? '') !== '';
    this.#program = program;
  }

  /** All workers accept clients, at the start or again after `reloading`. */
  ready(): void {
    this.#tell('READY=1');
  }

  /** The time makes it fit units of Type=notify-reload, which wait for the `ready` that follows. */
  reloading(): void {
    const monotonicUs = process.hrtime.bigint() / 1000n;
    this.#tell('RELOADING=1', `MONOTONIC_USEC=${monotonicUs}`);
  }

  stopping(): void {
    this.#tell('STOPPING=1');
  }

  /** The line that `systemctl status` shows. One that is still to be told is replaced. */
  status(text: string): void {
    const waiting = this.#queue.findIndex(([first]) => first?.startsWith('STATUS=') === true);
    if (waiting >= 0) this.#queue.splice(waiting, 1);
    this.#tell(`STATUS=${text}`);
  }

  #tell(...variables: string[]): void {
    if (!this.#isOn || this.#isMissing) return;
    this.#queue.push(variables);
    this.#next();
  }

  #next(): void {
    if (this.#running !== null) return;
    const variables = this.#queue.shift();
    if (variables === undefined) return;
    const child = spawn(this.#program, [`--pid=${process.pid}`, ...variables], { stdio: 'ignore' });
    this.#running = child;
    const end = (problem: string | null): void => {
      if (this.#running !== child) return;
      this.#running = null;
      if (problem !== null) log.warning(problem);
      this.#next();
    };
    child.once('error', (error) => {
      if (osErrorCode(error) !== 'ENOENT') return end(`${PROGRAM}: ${osErrorText(error)}`);
      this.#isMissing = true;
      this.#queue.length = 0;
      end(`NOTIFY_SOCKET is set, but there is no program ${PROGRAM}: systemd is told nothing`);
    });
    child.once('exit', (code, signal) => {
      end(
        code === 0 ? null : `${PROGRAM} ${variables[0]} failed: ${signal ?? `exit code ${code}`}`,
      );
    });
  }
}
