import { Action, type FrameSink, FrameWalker } from '../../src/wire/frame-walker.ts';
import { measure, message } from './measure.ts';

/** Cutting server and client streams into runs, with a sink that does next to nothing. */

let forwardedBytes = 0;

class Sink implements FrameSink {
  onHeader(type: number): Action {
    return type === 0x5a ? Action.forwardEnd : Action.forward;
  }

  onRun(_bytes: Buffer, start: number, end: number): void {
    forwardedBytes += end - start;
  }

  onTake(): void {}

  onEnd(): boolean {
    return true;
  }

  onBadHeader(): void {}
}

const row = message('D', Buffer.alloc(40, 1));
const ready = message('Z', 'I');
const rows = Buffer.concat([
  ...new Array<Buffer>(1000).fill(row),
  message('C', 'SELECT 1000\0'),
  ready,
]);
const answer = Buffer.concat([
  message('T', Buffer.alloc(28, 1)),
  message('D', Buffer.alloc(12, 1)),
  message('C', 'SELECT 1\0'),
  ready,
]);
const huge = message('D', Buffer.alloc(1 << 20, 1));

const walker = new FrameWalker(new Sink(), 0x7fffffff);
measure('1000 rows of 45 bytes in one read', 1002, () => {
  walker.walk(rows, 0, rows.length);
});
measure('answer of a one-row simple query (4 messages)', 4, () => {
  walker.walk(answer, 0, answer.length);
});
measure('one row of 1 MiB in reads of 64 KiB', 1, () => {
  for (let at = 0; at < huge.length; at += 65_536) {
    walker.walk(huge, at, Math.min(huge.length, at + 65_536));
  }
});
if (forwardedBytes === 0) throw new Error('nothing was forwarded');
