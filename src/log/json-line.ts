import { cutText } from '../util/cut-text.ts';
import { fieldsOf } from './fields.ts';
import { unescapeName } from './line.ts';

/** Longest message, in bytes, that a line of text has; JSON keeps to the same. */
const MAX_MESSAGE_BYTES = 2047;

/** `C-0x1f: db/user@host:port text`, as lines of clients (C) and servers (S) begin. */
const OBJECT =
  /^([CS])-(0x[0-9a-f]+): (?:peer-(\d+)|([^/\s]+)\/(\S+))@(\[[^\]\s]*\]|[^\s:]+):(\d+) (.*)$/s;

/** What a line tells besides its text. */
export interface JsonSource {
  readonly at: Date;
  readonly level: string;
  readonly pid: number;
  /** The worker's number; null in the launcher. */
  readonly worker: number | null;
}

/**
 * One log line as one JSON object: time with the zone's offset, level, pid and worker; of a client
 * (`kind` C) or server (S) its id, names and address; a stable `event` with its own fields where the
 * text is one that is known; and the text without the object's prefix as `message`.
 */
export function formatJson({ at, level, pid, worker }: JsonSource, text: string): string {
  const found = OBJECT.exec(text);
  const message = cutText(found?.[8] ?? text, MAX_MESSAGE_BYTES);
  const line = {
    time: formatTime(at),
    level,
    pid,
    ...(worker === null ? {} : { worker }),
    ...(found === null ? {} : objectOf(found)),
    ...fieldsOf(message),
    message,
  };
  return `${JSON.stringify(line)}\n`;
}

function objectOf(found: RegExpExecArray): object {
  const [, kind, id, peer, db, user, host, port] = found;
  const who =
    peer === undefined
      ? { db: unescapeName(db!), user: unescapeName(user!) }
      : { peer: Number(peer) };
  return { kind, id, ...who, host: host!.replace(/^\[|\]$/g, ''), port: Number(port) };
}

/** Local time as ISO 8601 writes it, with milliseconds and offset. */
function formatTime(at: Date): string {
  const ahead = -at.getTimezoneOffset();
  const size = Math.abs(ahead);
  const local = new Date(at.getTime() + ahead * 60_000).toISOString().slice(0, -1);
  return `${local}${ahead < 0 ? '-' : '+'}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}
