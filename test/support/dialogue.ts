import { reportFields, type WireMessage } from './messages.ts';
import type { WireClient } from './wire-client.ts';

/**
 * Messages as one line: the type letters, errors with severity, SQLSTATE and text, ReadyForQuery with
 * its status: `1 2 E(ERROR 22012 division by zero) Z:I`. What the server says on its own is left out.
 */
export function linesOf(messages: readonly WireMessage[]): string {
  return messages
    .filter(({ type }) => type !== 'S' && type !== 'N')
    .map(({ type, body }) => {
      if (type === 'Z') return `Z:${String.fromCharCode(body[0]!)}`;
      if (type !== 'E') return type;
      const { S, C, M } = reportFields(body);
      return `E(${S} ${C} ${M})`;
    })
    .join(' ');
}

/** Sends `parts` in one write and gives all answers, up to and with the `count`th ReadyForQuery. */
export async function ask(
  client: WireClient,
  parts: readonly Uint8Array[],
  count = 1,
): Promise<WireMessage[]> {
  client.send(...parts);
  const received: WireMessage[] = [];
  for (let i = 0; i < count; i++) received.push(...(await client.untilReady()));
  return received;
}

/** Sends `parts` and gives what is said until the connection is closed. */
export async function lastWords(client: WireClient, parts: readonly Uint8Array[]): Promise<string> {
  client.send(...parts);
  const received = await client.untilClose();
  client.destroy();
  return linesOf(received);
}
