import type { ReadStream, WriteStream } from 'node:tty';
import type { Line, Look, Size } from './screen.ts';

/**
 * The whole screen of a terminal, by the control sequences that xterm and all of its descendants know
 * (ECMA-48). What was there before comes back at the end, however the program ends.
 */

const ENTER = '\x1b[?1049h\x1b[?25l';
const LEAVE = '\x1b[?25h\x1b[?1049l';
const HOME = '\x1b[H';
const CLEAR_LINE = '\x1b[K';
const CLEAR_BELOW = '\x1b[J';
const RESET = '\x1b[0m';
const LOOKS: Readonly<Record<Look, string>> = {
  plain: '',
  title: '\x1b[1m',
  alarm: '\x1b[33m',
  dim: '\x1b[2m',
};

/** A key as its name. */
const KEYS: Readonly<Record<string, string>> = {
  '\x1b[A': 'up',
  '\x1b[B': 'down',
  '\x1bOA': 'up',
  '\x1bOB': 'down',
  '\x03': 'q',
};

export interface TerminalEvents {
  onKey(key: string): void;
  onResize(): void;
}

export class Terminal {
  readonly #output: WriteStream;
  readonly #input: ReadStream | null;
  readonly #hasColours: boolean;
  readonly #events: TerminalEvents;
  #isOpen = false;

  /**
   * @param input null: no keys
   * @param hasColours without them lines are told apart by their text alone
   */
  constructor(
    output: WriteStream,
    input: ReadStream | null,
    hasColours: boolean,
    events: TerminalEvents,
  ) {
    this.#output = output;
    this.#input = input;
    this.#hasColours = hasColours;
    this.#events = events;
  }

  get size(): Size {
    return { columns: this.#output.columns, rows: this.#output.rows };
  }

  open(): void {
    this.#isOpen = true;
    process.once('exit', this.close);
    this.#output.write(ENTER);
    this.#output.on('resize', this.#onResize);
    this.#input?.setRawMode(true);
    this.#input?.on('data', this.#onInput);
    this.#input?.resume();
  }

  /** Gives the screen back; may be called again. */
  readonly close = (): void => {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    process.off('exit', this.close);
    this.#output.off('resize', this.#onResize);
    this.#input?.off('data', this.#onInput);
    this.#input?.setRawMode(false);
    this.#input?.pause();
    this.#output.write(LEAVE);
  };

  show(lines: readonly Line[]): void {
    if (!this.#isOpen) return;
    const texts = lines.map(({ text, look }) => {
      const start = this.#hasColours ? LOOKS[look] : '';
      return `${start}${text}${start === '' ? '' : RESET}${CLEAR_LINE}`;
    });
    this.#output.write(`${HOME}${texts.join('\r\n')}${CLEAR_BELOW}`);
  }

  readonly #onResize = (): void => this.#events.onResize();

  readonly #onInput = (bytes: Buffer): void => {
    const text = bytes.toString('latin1');
    // A sequence comes as one piece; keys that were typed fast may come together.
    if (text in KEYS) this.#events.onKey(KEYS[text]!);
    else for (const key of text) this.#events.onKey(KEYS[key] ?? key);
  };
}
