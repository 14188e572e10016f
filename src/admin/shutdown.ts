import { type Command, controlPlan } from './command.ts';

const MODES = {
  WAIT_FOR_CLIENTS: 'wait_for_clients',
  WAIT_FOR_SERVERS: 'wait_for_servers',
} as const;

/** SHUTDOWN: at once, without an answer; or WAIT_FOR_CLIENTS or WAIT_FOR_SERVERS to leave. */
export const shutdown: Command = (argument, fleet) => {
  const word = argument?.toUpperCase() ?? null;
  const mode =
    word === null
      ? 'now'
      : word === 'WAIT_FOR_CLIENTS' || word === 'WAIT_FOR_SERVERS'
        ? MODES[word]
        : null;
  return mode === null ? null : controlPlan('SHUTDOWN', fleet, { name: 'shutdown', mode });
};
