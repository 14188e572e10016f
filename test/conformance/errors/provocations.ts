import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { FakeServer } from '../../support/fake-server.ts';
import { message } from '../../support/messages.ts';
import type { TestPooler } from '../../support/pooler.ts';
import type { TestPostgres } from '../../support/postgres.ts';
import type { RuleNotes, RuleOptions } from '../../support/rule.ts';
import { until } from '../../support/until.ts';
import { WireClient } from '../../support/wire-client.ts';
import { linesUntilClose, logSince } from '../support.ts';

/** What stands behind the poolers. */
export interface Place {
  readonly postgres: TestPostgres;
  /** Fake servers by name. */
  readonly fakes: Readonly<Record<string, FakeServer>>;
}

/** How one text of the table is made to come. */
export interface Provocation extends RuleNotes {
  readonly text: string;
  readonly check: (pooler: TestPooler, t: TestContext, place: Place) => Promise<void>;
}

/** Texts that are looked at on one pooler. */
export interface Provocations {
  readonly title: string;
  readonly options: (place: Place) => RuleOptions;
  readonly cases: readonly Provocation[];
}

/** A new connection that says `bytes`; its answers as text until it is closed. */
export async function answerTo(pooler: TestPooler, ...bytes: readonly Buffer[]): Promise<string> {
  const client = await WireClient.connect(pooler);
  client.send(...bytes);
  const answer = await linesUntilClose(client);
  client.destroy();
  return answer;
}

/** Bytes that a connection says first, which bring nothing but a FATAL. */
export function saying(
  text: string,
  bytes: Buffer,
  said: string = text,
  notes: RuleNotes = {},
): Provocation {
  return {
    text,
    ...notes,
    check: async (pooler) =>
      assert.equal(await answerTo(pooler, bytes), `FATAL 08P01 ${said} closed`),
  };
}

/** Runs `act` and waits until the log says that a client (C) or server (S) closed because of `text`. */
export async function logsClosing(
  pooler: TestPooler,
  side: 'C' | 'S',
  text: string,
  act: () => Promise<void>,
): Promise<void> {
  const from = pooler.log().length;
  await act();
  const wanted = `LOG ${side}`;
  await until(`the log says ${text}`, () =>
    logSince(pooler, from).some(
      (line) => line.startsWith(wanted) && line.endsWith(`closing because: ${text} (age)`),
    ),
  );
}

/** A password message, which also carries SASL. */
export function passwordMessage(...parts: readonly (string | Uint8Array)[]): Buffer {
  return message('p', parts);
}
