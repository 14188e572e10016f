import { type Command, controlPlan } from './command.ts';

/** SUSPEND: nothing is read from anybody, until RESUME. */
export const suspend: Command = (argument, fleet) =>
  argument === null ? controlPlan('SUSPEND', fleet, { name: 'suspend' }, true) : null;
