import { z } from 'zod';
import type { Config } from '../config/config.ts';
import { controlFromWorker, controlToWorker, fleetStateSchema, stopModes } from './control.ts';
import { statsAskSchema, statsSchema } from './stats.ts';

/**
 * What the launcher and a worker say to each other over the worker's inherited channel (Node's
 * `process.send`). Every message is a plain JSON object told apart by `kind`. Messages of a worker
 * carry the incarnation that it was started with, so that late ones of a dead process are dropped.
 */

/** A listening socket that the launcher has bound and the worker inherits. */
const listenerSchema = z.object({
  /** Number of the inherited descriptor in the worker; null: bind `address` yourself. */
  fd: z.number().int().nullable(),
  kind: z.enum(['tcp', 'unix']),
  /** As the log names it: `127.0.0.1:6432`, `[::]:6432`, `unix:/tmp/.s.PGSQL.6432`. */
  label: z.string(),
  host: z.string(),
  port: z.number().int(),
});
export type ListenerGrant = z.infer<typeof listenerSchema>;

/** A client that one worker passes to another: its socket travels beside this message. */
const handoffSchema = z.object({
  kind: z.literal('handoff'),
  /** Worker that should take it. */
  target: z.number().int(),
  /** Workers that have had it, so that a client never goes round in circles. */
  visited: z.array(z.number().int()),
  /** The StartupMessage and all else that was read from the client so far, base64. */
  received: z.string(),
  socketKind: z.enum(['tcp', 'unix']),
  /**
   * Set when the socket is no client's but leads to the worker that has the client's TLS: what that
   * one knows of the client. Bytes are base64.
   */
  client: z
    .object({
      address: z.string(),
      port: z.number().int(),
      localAddress: z.string(),
      localPort: z.number().int(),
      tls: z.object({
        version: z.string(),
        cipher: z.string(),
        certificate: z.string().nullable(),
        endPoint: z.string().nullable(),
      }),
    })
    .nullable(),
});
export type Handoff = z.infer<typeof handoffSchema>;

/** Where a server listens: a Unix socket's path, or address and port. */
const serverPlace = z.union([
  z.object({ path: z.string() }),
  z.object({ host: z.string(), port: z.number().int() }),
]);

/** A connection to PostgreSQL, and how what it runs can be cancelled. */
const cancellableSchema = z.object({
  place: serverPlace,
  /** The host's name for its certificate; null: the connection is not encrypted. */
  tlsHost: z.string().nullable(),
  /** BackendKeyData, base64. */
  key: z.string(),
});
export type Cancellable = z.infer<typeof cancellableSchema>;

const configSchema = z.custom<Config>((value) => typeof value === 'object' && value !== null);

/** Where the worker logs: its inherited stderr, and a file that it opens by this path. */
const logSchema = z.object({
  stderr: z.boolean(),
  logfile: z.string(),
  verbose: z.number().int(),
  format: z.enum(['text', 'json']).optional(),
  syslog: z.object({ ident: z.string(), facility: z.string() }).nullable().optional(),
});

/** What a reload asks a worker to do, in this order, or `abort` after `prepare`. */
const reloadSteps = ['prepare', 'commit', 'release', 'abort'] as const;
export type ReloadStep = (typeof reloadSteps)[number];

/** Builds all of a configuration that can fail, and changes nothing yet. */
const reloadPrepareSchema = z.object({
  kind: z.literal('reload_prepare'),
  version: z.number().int(),
  config: configSchema,
  log: logSchema,
});
export type ReloadPrepare = z.infer<typeof reloadPrepareSchema>;

const startSchema = z.object({
  kind: z.literal('start'),
  config: configSchema,
  /** While a reload is under way: the configuration before it, whose limits hold until `release`. */
  previous: configSchema.nullable(),
  /** 0 to size - 1; the worker's number in cancel keys and its place in the split of limits. */
  workerId: z.number().int().min(0).max(255),
  /** Number of workers in the fleet. */
  size: z.number().int().min(1).max(256),
  /** Of the fleet: an upgrade brings the next one. */
  generation: z.number().int(),
  /** Counts the processes that have had this worker's number. */
  incarnation: z.number().int(),
  listeners: z.array(listenerSchema),
  runtimeDir: z.string(),
  /** Hex of a random secret that all workers share: salts of mock authentication. */
  fleetSecret: z.string(),
  state: fleetStateSchema,
  /** Connections that died with processes of this number; what they run is to be cancelled first. */
  orphans: z.array(cancellableSchema),
  log: logSchema,
});
export type StartMessage = z.infer<typeof startSchema>;

const reloadAnswerSchema = z.object({
  kind: z.literal('reload_answer'),
  incarnation: z.number(),
  version: z.number().int(),
  step: z.enum(reloadSteps),
  refusal: z.string().nullable(),
});
export type ReloadAnswer = z.infer<typeof reloadAnswerSchema>;

/** Launcher to worker. */
export const toWorkerSchema = z.discriminatedUnion('kind', [
  startSchema,
  z.object({ kind: z.literal('ping'), seq: z.number() }),
  /** The log file may have been renamed: open its path anew. */
  z.object({ kind: z.literal('reopen_log') }),
  reloadPrepareSchema,
  /**
   * `commit` puts what was prepared in force, each limit being the smaller of the old and the new one;
   * `release` gives the room of the new ones; `abort` forgets what was prepared.
   */
  z.object({
    kind: z.literal('reload_step'),
    version: z.number().int(),
    step: z.enum(['commit', 'release', 'abort']),
  }),
  z.object({ kind: z.literal('stop'), mode: z.enum(stopModes) }),
  handoffSchema,
  statsAskSchema,
  ...controlToWorker,
]);
export type ToWorker = z.infer<typeof toWorkerSchema>;

/** Worker to launcher. */
export const fromWorkerSchema = z.discriminatedUnion('kind', [
  /** The process runs and waits for its `start`. */
  z.object({ kind: z.literal('hello') }),
  /** It accepts clients. */
  z.object({ kind: z.literal('ready'), incarnation: z.number() }),
  /** It cannot start: the reason is in `text`. */
  z.object({ kind: z.literal('failed'), text: z.string() }),
  /** `clients`: how many it has now, for the line that tells of its death. */
  z.object({ kind: z.literal('pong'), seq: z.number(), clients: z.number().int().optional() }),
  /** After `stop`: whether what it waits for is the case here. All workers end together. */
  z.object({
    kind: z.literal('stop_due'),
    incarnation: z.number(),
    mode: z.enum(stopModes),
    isDue: z.boolean(),
  }),
  /** After `stop` with the mode `now`: the process ends. */
  z.object({ kind: z.literal('stopped'), incarnation: z.number() }),
  /** A step of a reload is done; `refusal` says why not. An `abort` is not answered. */
  reloadAnswerSchema,
  /** A connection has logged in. */
  cancellableSchema.extend({ kind: z.literal('server_open'), id: z.number().int() }),
  /** A connection that `server_open` told of is gone. */
  z.object({ kind: z.literal('server_end'), id: z.number().int() }),
  handoffSchema,
  statsSchema,
  ...controlFromWorker,
]);
export type FromWorker = z.infer<typeof fromWorkerSchema>;
