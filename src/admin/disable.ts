import { type Command, controlPlan, isInUse } from './command.ts';

const NO_DATABASE = { error: 'a database is required' };

/** DISABLE db: nobody can log in to it any more. */
export const disable: Command = (database, fleet) =>
  database === null ? NO_DATABASE : controlPlan('DISABLE', fleet, { name: 'disable', database });

/** ENABLE db. */
export const enable: Command = (database, fleet) =>
  database === null
    ? NO_DATABASE
    : controlPlan('ENABLE', fleet, async () => ({
        name: 'enable',
        database,
        isInUse: await isInUse(database, fleet),
      }));
