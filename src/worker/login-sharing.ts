import { z } from 'zod';
import type { PassThroughKeys, ProvedKeys } from '../auth/pass-through.ts';
import type { AuthQueries, RemoteQuestion } from '../client/auth-queries.ts';
import type { AuthQueryOutcome } from '../client/auth-query-client.ts';
import { log } from '../log/logger.ts';
import type { Mesh } from '../mesh/mesh.ts';
import { Secret } from '../util/secret.ts';

/**
 * What the workers of a fleet tell each other of logins, so that they act as one pooler: keys that
 * clients have proved (SCRAM pass-through), and names that one has to look up for another. Secrets
 * travel over the mesh, whose sockets are private to the fleet's user, and are nowhere written down.
 */

/** A SHA-256 key. */
const keySchema = z.base64().length(44);
const keysSchema = z.array(
  z.strictObject({ user: z.string(), clientKey: keySchema, serverKey: keySchema }),
);
const requestSchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('scram_keys'), keys: keysSchema }),
  z.strictObject({ kind: z.literal('scram_keys_wanted') }),
  z.strictObject({
    kind: z.literal('auth_query'),
    database: z.string().nullable(),
    user: z.string(),
    ptr: z.string(),
    ageMs: z.number(),
  }),
]);
const outcomeSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('row'),
    row: z.strictObject({ name: z.string(), secret: z.string() }),
  }),
  z.strictObject({ kind: z.literal('none') }),
  z.strictObject({ kind: z.literal('refused'), sqlstate: z.string(), text: z.string() }),
]);

type KeysOnTheWire = z.infer<typeof keysSchema>;

export class LoginSharing {
  readonly #mesh: () => Pick<Mesh, 'request' | 'requestAll'>;
  readonly #keys: () => PassThroughKeys;
  readonly #queries: () => AuthQueries;

  constructor(rooms: {
    readonly mesh: () => Pick<Mesh, 'request' | 'requestAll'>;
    readonly keys: () => PassThroughKeys;
    readonly queries: () => AuthQueries;
  }) {
    this.#mesh = rooms.mesh;
    this.#keys = rooms.keys;
    this.#queries = rooms.queries;
  }

  /** Answers what another worker asks or tells; undefined: it is nothing of this kind. */
  answer(request: unknown, gone: AbortSignal): unknown {
    const parsed = requestSchema.safeParse(request);
    if (!parsed.success) return undefined;
    switch (parsed.data.kind) {
      case 'scram_keys':
        this.#accept(parsed.data.keys);
        return true;
      case 'scram_keys_wanted':
        return onTheWire(this.#keys().all);
      case 'auth_query':
        return this.#queries().answer(parsed.data, gone);
    }
  }

  /** Has another worker look a name up. @throws Error when it cannot be reached */
  async askWorker(
    worker: number,
    question: RemoteQuestion,
    gone: AbortSignal,
  ): Promise<AuthQueryOutcome> {
    // That worker keeps to the time limits of queues and logins, which may be none.
    const answer = await this.#mesh().request(worker, { kind: 'auth_query', ...question }, 0, gone);
    return outcomeSchema.parse(answer);
  }

  /** Tells the others of keys that a client of this worker has proved. */
  async tell(proved: ProvedKeys): Promise<void> {
    const answers = await this.#mesh().requestAll({
      kind: 'scram_keys',
      keys: onTheWire([proved]),
    });
    for (const [worker, answer] of answers) {
      if ('error' in answer) log.debug(`worker ${worker} was not told of SCRAM keys`);
    }
  }

  /** Asks the others for all that they know; called once, before clients come. */
  async catchUp(): Promise<void> {
    const answers = await this.#mesh().requestAll({ kind: 'scram_keys_wanted' });
    for (const answer of answers.values()) {
      // Those that do not run yet will ask this one.
      if ('value' in answer) this.#accept(keysSchema.parse(answer.value));
    }
  }

  #accept(keys: KeysOnTheWire): void {
    for (const { user, clientKey, serverKey } of keys) {
      this.#keys().accept({
        user,
        keys: { clientKey: secretOf(clientKey), serverKey: secretOf(serverKey) },
      });
    }
  }
}

function onTheWire(proved: readonly ProvedKeys[]): KeysOnTheWire {
  return proved.map(({ user, keys }) => ({
    user,
    clientKey: keys.clientKey.reveal().toString('base64'),
    serverKey: keys.serverKey.reveal().toString('base64'),
  }));
}

function secretOf(base64: string): Secret<Buffer> {
  return new Secret(Buffer.from(base64, 'base64'));
}
