import type { Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { PassThroughKeys } from '../../../src/auth/pass-through.ts';
import { ProvedPasswords } from '../../../src/auth/proved-passwords.ts';
import { classifySecret, type StoredSecret } from '../../../src/auth/secret.ts';
import { profileOf } from '../../../src/auth/secret-profile.ts';
import { CancelKeys } from '../../../src/cancel/cancel-keys.ts';
import type { CancelTarget } from '../../../src/cancel/canceller.ts';
import { Admission } from '../../../src/client/admission.ts';
import { ClientSession } from '../../../src/client/client-session.ts';
import type { ClientContext } from '../../../src/client/context.ts';
import type { LocalBackend, LocalPeer } from '../../../src/client/local-backend.ts';
import { UnixOwner } from '../../../src/client/unix-owner.ts';
import { splitNames } from '../../../src/config/values.ts';
import { Link } from '../../../src/net/link.ts';
import { inTurn } from '../../../src/net/turn.ts';
import { StatementRegistry } from '../../../src/prepared/registry.ts';
import { StatementTranslator } from '../../../src/prepared/translator.ts';
import { TrackedNames } from '../../../src/server/parameters.ts';
import { ClientTls } from '../../../src/tls/client-tls.ts';
import {
  reportFields,
  splitMessages,
  startup,
  typesOf,
  type WireMessage,
} from '../../support/messages.ts';
import { FakeSocket } from '../net/support.ts';
import { type Backend, type World, world } from '../pool/support.ts';

/** A console that notes what it is told and answers nothing by itself. */
export class FakeConsole implements LocalBackend {
  readonly parameters = [['server_version', '1.25.2/bouncer']] as const;
  readonly heard: string[] = [];
  isClosed = false;
  peer!: LocalPeer;
  user = '';
  rights = '';

  onMessage(type: number, body: Buffer): void {
    this.heard.push(`${String.fromCharCode(type)} ${body.toString('latin1')}`);
  }

  onClose(): void {
    this.isClosed = true;
  }
}

/** The client's end of a session. */
export class TestClient {
  readonly socket = new FakeSocket();
  readonly session: ClientSession;
  #read = 0;

  constructor(context: ClientContext) {
    this.session = new ClientSession(context);
    const link = new Link(this.socket as unknown as Socket, this.session);
    context.admission.total++;
    this.session.attach(link, 6432, 'unix');
  }

  send(...messages: readonly Buffer[]): void {
    const bytes = Buffer.concat(messages);
    this.session.link.read(bytes.length, bytes);
  }

  /** Bytes that the client got since the last call. */
  bytes(): Buffer {
    const fresh = Buffer.concat(this.socket.written.slice(this.#read));
    this.#read = this.socket.written.length;
    return fresh;
  }

  messages(): WireMessage[] {
    return splitMessages(this.bytes()).messages;
  }

  /** Type letters of what it got; an error with its SQLSTATE and text. */
  got(): string {
    return this.messages()
      .map((message) => {
        if (message.type !== 'E') return typesOf([message]);
        const { S, C, M } = reportFields(message.body);
        return `${S} ${C} ${M}`;
      })
      .join(', ');
  }

  get isClosed(): boolean {
    return this.socket.ended || this.socket.destroyed;
  }
}

export interface ClientWorld {
  readonly given: World;
  readonly context: ClientContext;
  readonly console: FakeConsole;
  readonly cancels: { packet: string; done: (reason: string) => void; isGivenUp: boolean }[];
  readonly handoffs: string[];
  readonly ended: ClientSession[];
  /** What `placesFor` answers. */
  places: readonly number[];
  handsOff: boolean;
  connect(): TestClient;
  /** A client that has its welcome. The server that was opened for it is idle. */
  welcome(parameters?: Readonly<Record<string, string>>): TestClient;
  /** The other end of the server opened last. */
  backend(): Backend;
}

const USERS: Readonly<Record<string, string>> = {
  u: 'secret',
  v: 'other',
  admin: 'a',
  stats: 's',
};

/** Sessions over a pool set whose servers the test plays. Everybody is trusted unless told. */
export function clientWorld(
  t: TestContext,
  settings = '',
  databases = 'd = host=h',
  users = '',
): ClientWorld {
  const given = world(t, `auth_type = trust\n${settings}`, databases, users);
  const { index } = given;
  const registry = new StatementRegistry();
  const console = new FakeConsole();
  const cancels: ClientWorld['cancels'] = [];
  const handoffs: string[] = [];
  const ended: ClientSession[] = [];
  const secrets = new Map<string, StoredSecret>(
    Object.entries(USERS).map(([user, secret]) => [user, classifySecret(secret)]),
  );
  const context: ClientContext = {
    index,
    clientTls: new ClientTls(index.config),
    tracked: new TrackedNames([]),
    registry,
    translator: new StatementTranslator(registry, 200),
    ignoredParameters: new Set(splitNames(index.settings.ignore_startup_parameters)),
    adminUsers: new Set(['admin']),
    statsUsers: new Set(['stats']),
    hba: null,
    unixOwner: new UnixOwner(null, 0o777),
    pools: given.pools,
    admission: new Admission(index, 0, 1),
    cancelKeys: new CancelKeys<CancelTarget>(0, 0),
    passThrough: new PassThroughKeys(),
    provedPasswords: new ProvedPasswords(),
    checkLdap: async () => false,
    console: {
      open: (peer, rights) => {
        Object.assign(console, { peer, rights });
        return console;
      },
    },
    fleetSecret: Buffer.alloc(32, 7),
    secretProfile: () => profileOf(secrets.values()),
    findUser: (user) => ({ kind: 'found', secret: secrets.get(user) ?? null }),
    isShuttingDown: false,
    onCancelRequest: (packet, done) => {
      const cancel = { packet: packet.toString('hex'), done, isGivenUp: false };
      cancels.push(cancel);
      return () => {
        cancel.isGivenUp = true;
      };
    },
    worker: 0,
    placesFor: () => self.places,
    handOff: (session, target, received) => {
      if (!self.handsOff) return false;
      handoffs.push(`${target}: ${received.toString('latin1')}`);
      session.link.detach();
      session.release();
      return true;
    },
    onSessionEnd: (session) => void ended.push(session),
  };
  const self: ClientWorld = {
    given,
    context,
    console,
    cancels,
    handoffs,
    ended,
    places: [0],
    handsOff: false,
    connect: () => new TestClient(context),
    welcome: (parameters = {}) => {
      const client = new TestClient(context);
      client.send(startup({ user: 'u', database: 'd', ...parameters }));
      const opener = given.opener();
      if (opener.backends.length === 0 || given.pool().welcome === null) opener.last.logIn();
      client.bytes();
      return client;
    },
    backend: () => given.opener().last,
  };
  return self;
}

/** Runs as one turn, as whatever makes a session act by itself does. */
export { inTurn };
