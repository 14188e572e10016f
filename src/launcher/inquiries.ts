import { connect, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { z } from 'zod';

/**
 * What a launcher answers on its own socket in the runtime folder: one line is asked, one JSON object
 * comes back, and the connection ends. Only the fleet's account and root can reach it.
 */

/** Asks what a reload would change. */
const ASK_CHANGES = 'changes\n';
/** Longest question, in bytes. */
const MAX_BYTES = 64;
/** Time for a question and for its answer to be read, in milliseconds. */
const PATIENCE_MS = 5000;

const changesSchema = z.object({
  /** A line each; null: the file cannot be put in force. */
  changes: z.array(z.string()).nullable(),
  /** What is wrong with the file, warnings marked as such. */
  problems: z.array(z.string()),
});
/** What a reload would change, if it could be carried out. */
export type Changes = z.infer<typeof changesSchema>;

/** Answers one connection to the launcher's socket. Whoever only looks whether it lives says nothing. */
export function answerInquiry(socket: Socket, changes: () => Changes): void {
  let asked = '';
  socket.setTimeout(PATIENCE_MS, () => socket.destroy());
  socket.on('error', () => socket.destroy());
  socket.on('data', (chunk: Buffer) => {
    asked += chunk.toString('latin1');
    if (asked === ASK_CHANGES) socket.end(JSON.stringify(changes()));
    else if (asked.length > MAX_BYTES || asked.endsWith('\n')) socket.destroy();
  });
}

/** Asks the launcher that listens on `path`. @throws Error of the system, or of an answer that is none */
export async function askChanges(path: string): Promise<Changes> {
  const socket = connect(path);
  socket.write(ASK_CHANGES);
  return changesSchema.parse(JSON.parse(await text(socket)));
}
