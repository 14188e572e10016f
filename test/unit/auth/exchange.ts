import { createHash } from 'node:crypto';
import {
  type AuthStep,
  type ClientAuth,
  type ClientAuthRequest,
  startClientAuth,
} from '../../../src/auth/client-auth.ts';
import type { LoginMethod } from '../../../src/auth/login-method.ts';
import { profileOf } from '../../../src/auth/secret-profile.ts';
import type { ServerAuth, ServerAuthStep } from '../../../src/auth/server-auth.ts';

export const FLEET_SECRET = Buffer.from('the secret that all workers share');

/** `SCRAM-SHA-256` secret of the password `pencil` with the salt and count of RFC 7677. */
export const PENCIL_SCRAM =
  'SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=';
/** MD5 secret of the password `pencil` for the user `user`. */
export const PENCIL_MD5 = `md5${createHash('md5').update('penciluser').digest('hex')}`;

/** Bytes that look random but are the same in every run. */
export function seededRandom(seed: number): (n: number) => Buffer {
  let state = seed >>> 0;
  return (n) =>
    Buffer.from(
      Array.from({ length: n }, () => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        return state >>> 24;
      }),
    );
}

type SimpleMethod = 'any' | 'trust' | 'plain' | 'md5' | 'scram-sha-256' | 'reject';

type AuthChanges = Partial<Omit<ClientAuthRequest, 'method'>> & {
  readonly method?: SimpleMethod | LoginMethod;
};

/** A login of `user` with the usual surroundings; `changes` wins. */
export function clientAuth(changes: AuthChanges): ClientAuth {
  const { method = 'scram-sha-256', ...others } = changes;
  return startClientAuth({
    method: typeof method === 'string' ? { kind: method } : method,
    user: 'user',
    secret: null,
    connection: { isUnix: false, address: '127.0.0.1', tls: null, osUser: null },
    scramIterations: 4096,
    fleetSecret: FLEET_SECRET,
    profile: profileOf([]),
    isGone: () => false,
    random: seededRandom(1),
    checkLdap: async () => false,
    ...others,
  });
}

export interface Outcome {
  /** Codes of the authentication requests that the pooler sent, in order. */
  readonly requests: readonly number[];
  readonly clientEnd: AuthStep | null;
  readonly serverEnd: ServerAuthStep | null;
}

/** Lets `peer`, our login to a server, log in at `pooler`, our login of a client. */
export async function exchange(pooler: ClientAuth, peer: ServerAuth): Promise<Outcome> {
  const requests: number[] = [];
  let clientEnd: AuthStep = pooler.begin();
  let serverEnd: ServerAuthStep | null = null;
  while (clientEnd.kind === 'send') {
    const { code, body } = readRequest(clientEnd.message);
    requests.push(code);
    serverEnd = await peer.onRequest(code, body);
    if (serverEnd.kind !== 'send') return { requests, clientEnd, serverEnd };
    clientEnd = await pooler.onMessage(readAnswer(serverEnd.message));
  }
  if (clientEnd.kind === 'accepted') {
    if (clientEnd.message !== null) {
      const { code, body } = readRequest(clientEnd.message);
      requests.push(code);
      const step = await peer.onRequest(code, body);
      if (step.kind !== 'nothing') return { requests, clientEnd, serverEnd: step };
    }
    serverEnd = await peer.onRequest(0, Buffer.alloc(0));
  }
  return { requests, clientEnd, serverEnd };
}

/** Code and rest of an Authentication message, whose header must be right. */
export function readRequest(message: Buffer): { code: number; body: Buffer } {
  if (message[0] !== 0x52 || message.readInt32BE(1) !== message.length - 1) {
    throw new Error(`bad Authentication message ${message.toString('hex')}`);
  }
  return { code: message.readInt32BE(5), body: message.subarray(9) };
}

/** Body of a `p` message, whose header must be right. */
export function readAnswer(message: Buffer): Buffer {
  if (message[0] !== 0x70 || message.readInt32BE(1) !== message.length - 1) {
    throw new Error(`bad password message ${message.toString('hex')}`);
  }
  return message.subarray(5);
}

/** The bytes of a message that a step sends. */
export function sent(step: AuthStep | ServerAuthStep): Buffer {
  if (step.kind !== 'send') throw new Error(`expected a message, got ${JSON.stringify(step)}`);
  return step.message;
}

/** Body of a PasswordMessage. */
export function passwordBody(password: string): Buffer {
  return Buffer.from(`${password}\0`);
}

/** Body of a SASLInitialResponse. */
export function initialBody(response: string, mechanism = 'SCRAM-SHA-256'): Buffer {
  const bytes = Buffer.from(response, 'latin1');
  const length = Buffer.alloc(4);
  length.writeInt32BE(bytes.length);
  return Buffer.concat([Buffer.from(`${mechanism}\0`), length, bytes]);
}
