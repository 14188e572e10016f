import { type Command, controlPlan } from './command.ts';

/** RELOAD: the configuration is read again. */
export const reload: Command = (argument, fleet) =>
  argument === null ? controlPlan('RELOAD', fleet, { name: 'reload' }) : null;
