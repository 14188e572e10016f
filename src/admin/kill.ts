import { type Command, controlPlan, failOnMissing } from './command.ts';

/** KILL [db]: ends all that is connected to it, and pauses it. */
export const kill: Command = (database, fleet) =>
  controlPlan('KILL', fleet, async () => {
    if (database !== null) return { name: 'kill', database, inUse: [] };
    const { snapshots, missing } = await fleet.collect(['pools']);
    failOnMissing(missing);
    const names = snapshots.flatMap(({ pools }) => pools.map((pool) => pool.database));
    return { name: 'kill', database, inUse: [...new Set(names)] };
  });

/** KILL_CLIENT id, the `id` of SHOW CLIENTS. As in PgBouncer, what follows the digits is ignored. */
export const killClient: Command = (argument, fleet) => {
  const digits = /^\d+/.exec(argument ?? '')?.[0];
  if (digits === undefined) return { error: 'invalid client pointer supplied' };
  return controlPlan('KILL_CLIENT', fleet, { name: 'kill_client', id: Number(digits) });
};
