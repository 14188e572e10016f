import assert from 'node:assert/strict';
import {
  int32,
  message,
  PROTOCOL_3_0,
  packet,
  reportFields,
  startup,
  type WireMessage,
} from './messages.ts';
import type { RuleCase } from './rule.ts';
import { ScramClient } from './scram.ts';
import { until } from './until.ts';
import { type Address, WireClient } from './wire-client.ts';

/**
 * Bytes to send, made of the last answer perhaps; or an answer to wait for: untyped bytes, or a
 * message of this type; or the end of what the client sends.
 */
export type Step =
  | Buffer
  | { readonly raw: number }
  | { readonly until: string }
  | { readonly end: true }
  | ((last: Buffer) => Buffer);

/** A rule that says what comes back for certain bytes. */
export interface Dialogue {
  readonly name: string;
  readonly steps: readonly Step[];
  /** See `transcript`. */
  readonly says: readonly string[];
  /** First version of PgBouncer that is asked. */
  readonly since?: string;
  /** PgBouncer answers otherwise, and why ours is better; without `says` it is not asked. */
  readonly bouncer?: { readonly because: string; readonly says?: readonly string[] };
}

export const APP = { user: 'app', database: 'app' };
/** The welcome, ParameterStatus left out. */
export const WELCOME: readonly string[] = ['R0', 'K', 'Z:I'];
export const GSS_REQUEST = packet([int32(80_877_104)]);

export function ruleOf({ name, steps, says, since, bouncer }: Dialogue): RuleCase {
  const asks =
    (lines: readonly string[]): RuleCase['check'] =>
    async (pooler) =>
      assert.deepEqual(await transcript(pooler, steps), lines);
  const own = { name, check: asks(says), ...(since === undefined ? {} : { since }) };
  if (bouncer === undefined) return own;
  const { because } = bouncer;
  const differs = { because, ...(bouncer.says ? { check: asks(bouncer.says) } : {}) };
  return { ...own, differs };
}

export function fatal(text: string): string[] {
  return [`FATAL 08P01 ${text}`, 'closed'];
}

export function badHeader(bytes: Buffer): string[] {
  return fatal(`bad packet header: '${bytes.toString('hex', 0, Math.min(8, bytes.length))}'`);
}

/** A message whose length word says what it likes. */
export function word(type: string, length: number, rest = ''): Buffer {
  return message(type, [Buffer.from(rest)], length);
}

/** Int32 words one after the other. */
export function words(...numbers: readonly number[]): Buffer {
  return Buffer.concat(numbers.map(int32));
}

/** A startup packet whose parts are given as they are. */
export function rawStartup(...parts: readonly (string | Buffer)[]): Buffer {
  return packet([int32(PROTOCOL_3_0), ...parts]);
}

/** A password message with the first word of a SCRAM exchange. */
export function saslFirst(mechanism: string, text: string): Buffer {
  return message('p', [mechanism, int32(Buffer.byteLength(text)), Buffer.from(text)]);
}

/** A whole login by SCRAM. */
export function scramSteps(password: string, user = 'app', database = 'app'): Step[] {
  const scram = new ScramClient(password);
  return [
    startup({ user, database }),
    { until: 'R' },
    saslFirst('SCRAM-SHA-256', scram.first()),
    { until: 'R' },
    (request) => message('p', [Buffer.from(scram.final(request.toString('utf8', 4)))]),
  ];
}

/**
 * Takes the steps on a connection of its own and tells what came back, a line a message, up to the
 * end (`closed`) or the first ReadyForQuery after the last step.
 */
export async function transcript(address: Address, steps: readonly Step[]): Promise<string[]> {
  const client = await WireClient.connect(address);
  const lines: string[] = [];
  let last: Buffer = Buffer.alloc(0);
  try {
    for (const step of steps) {
      if (Buffer.isBuffer(step)) client.send(step);
      else if (typeof step === 'function') client.send(step(last));
      else if ('end' in step) client.socket.end();
      else if ('raw' in step) {
        lines.push((await client.rawBytes(step.raw))?.toString('latin1') ?? 'closed');
      } else {
        const received = await client.until(step.until);
        last = received.at(-1)!.body;
        lines.push(...linesOf(received));
      }
    }
    for (;;) {
      const next = await client.next().catch((error: Error) => {
        if (client.isClosed) return null;
        throw error;
      });
      if (next === null) return [...lines, 'closed'];
      lines.push(...linesOf([next]));
      if (next.type === 'Z') return lines;
    }
  } finally {
    client.destroy();
    await until('the socket is closed', () => client.socket.closed);
  }
}

/** One line a message: errors with their fields, `Z:I`, `R10`, `v 3.0 names`; no ParameterStatus. */
export function linesOf(messages: readonly WireMessage[]): string[] {
  return messages.flatMap(({ type, body }) => {
    if (type === 'S') return [];
    if (type === 'Z') return [`Z:${body.toString('latin1')}`];
    if (type === 'R') return [`R${body.readInt32BE(0)}`];
    if (type === 'v') {
      const names = body
        .toString('utf8', 8)
        .split('\0')
        .filter((name) => name !== '');
      return [['v', `${body.readInt16BE(0)}.${body.readInt16BE(2)}`, ...names].join(' ')];
    }
    if (type === 'N') return [`N ${reportFields(body)['M']}`];
    if (type !== 'E') return [type];
    const { S, C, M } = reportFields(body);
    return [`${S} ${C} ${M}`];
  });
}
