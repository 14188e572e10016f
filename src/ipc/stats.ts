import { z } from 'zod';

/**
 * What the line of averages in the log is made of. The launcher asks all workers at the end of each
 * `stats_period` and adds up what they say.
 */

/** Counters since the worker's process began, over all databases. Times are microseconds. */
const countersSchema = z.object({
  transactions: z.number(),
  queries: z.number(),
  clientParses: z.number(),
  serverParses: z.number(),
  binds: z.number(),
  clientLogins: z.number(),
  bytesReceived: z.number(),
  bytesSent: z.number(),
  transactionUs: z.number(),
  queryUs: z.number(),
  waitUs: z.number(),
  serverAssignments: z.number(),
});
export type FleetCounters = z.infer<typeof countersSchema>;

/** Launcher to worker. */
export const statsAskSchema = z.object({ kind: z.literal('stats_ask'), seq: z.number().int() });

/** Worker to launcher. */
export const statsSchema = z.object({
  kind: z.literal('stats'),
  incarnation: z.number(),
  seq: z.number().int(),
  counters: countersSchema,
});
export type StatsAnswer = z.infer<typeof statsSchema>;
