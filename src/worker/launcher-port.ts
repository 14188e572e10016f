import type { ControlPort } from '../admin/control.ts';
import { CommandError } from '../admin/control.ts';
import type { ControlCommand, ControlOutcome } from '../ipc/control.ts';
import type { FromWorker } from '../ipc/messages.ts';

interface Asked {
  readonly resolve: (notice: string | null) => void;
  readonly reject: (error: CommandError) => void;
  readonly name: string;
  /** To be called when it is over. */
  readonly onEnd: () => void;
}

/** Brings the control commands of this worker's consoles to the launcher, and its answers back. */
export class LauncherPort implements ControlPort {
  readonly #send: (message: FromWorker) => boolean;
  readonly #asked = new Map<number, Asked>();
  #lastId = 0;

  /** @param send returns false when there is no launcher */
  constructor(send: (message: FromWorker) => boolean) {
    this.#send = send;
  }

  ask(command: ControlCommand, signal: AbortSignal): Promise<string | null> {
    return new Promise((resolve, reject) => {
      const id = ++this.#lastId;
      const name = command.name.toUpperCase();
      if (!this.#send({ kind: 'control_ask', id, command })) {
        reject(withoutLauncher(name));
        return;
      }
      // The promise stays open: nobody listens to it any more.
      const leave = (): void => {
        if (this.#asked.delete(id)) this.#send({ kind: 'control_leave', id });
      };
      signal.addEventListener('abort', leave, { once: true });
      // A session may ask thousands of times before its signal comes.
      const onEnd = (): void => signal.removeEventListener('abort', leave);
      this.#asked.set(id, { resolve, reject, name, onEnd });
    });
  }

  sessions(count: number): void {
    this.#send({ kind: 'consoles', count });
  }

  onAnswer(id: number, outcome: ControlOutcome): void {
    const asked = this.#asked.get(id);
    this.#asked.delete(id);
    if (asked === undefined) return;
    asked.onEnd();
    if (outcome.ok) asked.resolve(outcome.notice ?? null);
    else asked.reject(new CommandError(outcome.text, outcome.sqlstate, outcome.detail));
  }

  /** The launcher has died: nothing that it was asked will be answered. */
  onLauncherGone(): void {
    for (const { reject, name, onEnd } of this.#asked.values()) {
      onEnd();
      reject(withoutLauncher(name));
    }
    this.#asked.clear();
  }
}

function withoutLauncher(name: string): CommandError {
  return new CommandError(
    `${name} is not possible now: the fleet's launcher does not run; SHOW commands still work`,
  );
}
