import { type Command, controlPlan, isInUse } from './command.ts';

/** PAUSE [db]: answered when no server is in use any more. */
export const pause: Command = (database, fleet) =>
  controlPlan('PAUSE', fleet, { name: 'pause', database }, true);

/** RESUME [db]. */
export const resume: Command = (database, fleet) =>
  controlPlan('RESUME', fleet, async () => ({
    name: 'resume',
    database,
    isInUse: database !== null && (await isInUse(database, fleet)),
  }));
