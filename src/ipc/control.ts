import { z } from 'zod';

/**
 * Control of a whole fleet (PgBouncer's PAUSE, KILL and the like): what the console of any worker
 * asks of the launcher, and what the launcher has every worker do.
 */

/** How a fleet ends: at once, when all clients have left, or when all servers are free. */
export const stopModes = ['now', 'wait_for_clients', 'wait_for_servers'] as const;
export type StopMode = (typeof stopModes)[number];

const database = z.string();
/** Null: all of them. */
const databaseOrAll = z.string().nullable();

/** A command as it was given. */
const commandSchema = z.discriminatedUnion('name', [
  z.object({ name: z.literal('pause'), database: databaseOrAll }),
  /** `isInUse`: a worker knows a database of that name, though it may have no line of its own. */
  z.object({ name: z.literal('resume'), database: databaseOrAll, isInUse: z.boolean() }),
  z.object({ name: z.literal('suspend') }),
  z.object({ name: z.literal('disable'), database }),
  z.object({ name: z.literal('enable'), database, isInUse: z.boolean() }),
  /** `inUse`: what KILL without a name is about, all databases that have a pool somewhere. */
  z.object({ name: z.literal('kill'), database: databaseOrAll, inUse: z.array(z.string()) }),
  z.object({ name: z.literal('kill_client'), id: z.number() }),
  z.object({ name: z.literal('reconnect'), database: databaseOrAll }),
  z.object({ name: z.literal('wait_close'), database: databaseOrAll }),
  z.object({ name: z.literal('reload') }),
  z.object({ name: z.literal('set'), key: z.string(), value: z.string() }),
  z.object({ name: z.literal('shutdown'), mode: z.enum(stopModes) }),
]);
export type ControlCommand = z.infer<typeof commandSchema>;

/** What a worker does; PAUSE, SUSPEND and WAIT_CLOSE are over when what they wait for has happened. */
const actionSchema = z.discriminatedUnion('name', [
  z.object({ name: z.literal('pause'), database: databaseOrAll }),
  z.object({ name: z.literal('resume'), database: databaseOrAll }),
  z.object({ name: z.literal('suspend') }),
  z.object({ name: z.literal('disable'), database }),
  z.object({ name: z.literal('enable'), database }),
  z.object({ name: z.literal('kill'), databases: z.array(z.string()) }),
  z.object({ name: z.literal('kill_client'), id: z.number() }),
  z.object({ name: z.literal('reconnect'), database: databaseOrAll }),
  z.object({ name: z.literal('wait_close'), database: databaseOrAll }),
]);
export type ControlAction = z.infer<typeof actionSchema>;

/** How a command ended. `sqlstate` is PgBouncer's usual one when it is left out. */
const outcomeSchema = z.union([
  /** `notice`: what the console has to say besides. */
  z.object({ ok: z.literal(true), notice: z.string().optional() }),
  z.object({
    ok: z.literal(false),
    text: z.string(),
    sqlstate: z.string().optional(),
    detail: z.string().optional(),
  }),
]);
export type ControlOutcome = z.infer<typeof outcomeSchema>;

/** What is in force in the whole fleet; a worker starts in it. */
export const fleetStateSchema = z.object({
  mode: z.enum(['active', 'paused', 'suspended']),
  /** Databases with a pause of their own. */
  paused: z.array(z.string()),
  disabled: z.array(z.string()),
});
export type FleetState = z.infer<typeof fleetStateSchema>;

/** Launcher to worker. */
export const controlToWorker = [
  /** Do this; `seq` numbers the commands of the fleet. */
  z.object({ kind: z.literal('control'), seq: z.number().int(), action: actionSchema }),
  /** Nobody waits for that command any more. */
  z.object({ kind: z.literal('control_forget'), seq: z.number().int() }),
  /** The end of what this worker asked for. */
  z.object({ kind: z.literal('control_answer'), id: z.number().int(), outcome: outcomeSchema }),
] as const;

/** Worker to launcher. */
export const controlFromWorker = [
  /** A console of this worker gives a command; `id` is the worker's own number for it. */
  z.object({ kind: z.literal('control_ask'), id: z.number().int(), command: commandSchema }),
  /** That console has left. */
  z.object({ kind: z.literal('control_leave'), id: z.number().int() }),
  /**
   * `applied`: done, and what it may have to wait for goes on. `settled`: that has happened too.
   * `isFound` is false for a client that is not here.
   */
  z.object({
    kind: z.literal('control_done'),
    incarnation: z.number(),
    seq: z.number().int(),
    stage: z.enum(['applied', 'settled']),
    isFound: z.boolean(),
  }),
  /** Sessions of the console that are open in this worker. */
  z.object({ kind: z.literal('consoles'), count: z.number().int() }),
] as const;

const fromWorker = z.discriminatedUnion('kind', controlFromWorker);
/** What a worker tells the launcher about control. */
export type ControlMessage = z.infer<typeof fromWorker>;
