import { type Command, controlPlan } from './command.ts';

/** RECONNECT [db]: every server is replaced as it becomes free. */
export const reconnect: Command = (database, fleet) =>
  controlPlan('RECONNECT', fleet, { name: 'reconnect', database });

/** WAIT_CLOSE [db]: answered when RECONNECT, or a reload, has no server left to replace. */
export const waitClose: Command = (database, fleet) =>
  controlPlan('WAIT_CLOSE', fleet, { name: 'wait_close', database }, true);
