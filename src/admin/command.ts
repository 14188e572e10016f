import { noticeResponse } from '../wire/encode.ts';
import { CommandError, type ControlCommand } from './control.ts';
import type { Fleet } from './fleet.ts';
import type { Plan } from './plan.ts';

/** A command's argument turned into what is to be done; null: that is no argument of it. */
export type Command = (
  argument: string | null,
  fleet: Fleet,
) => Plan | { readonly error: string } | null;

/**
 * A plan that has the whole fleet do something and answers with no rows.
 *
 * @param isDeferred the answer may be long in coming, and what is asked meanwhile is answered first
 */
export function controlPlan(
  tag: string,
  fleet: Fleet,
  command: ControlCommand | (() => Promise<ControlCommand>),
  isDeferred = false,
): Plan {
  return {
    columns: null,
    isDeferred,
    run: async (signal) => {
      const asked = typeof command === 'function' ? await command() : command;
      const notice = await fleet.control.ask(asked, signal);
      return { notices: notice === null ? [] : [noticeResponse(notice)], rows: [], tag };
    },
  };
}

/** Whether any worker knows a database of that name. @throws CommandError when one does not answer */
export async function isInUse(database: string, fleet: Fleet): Promise<boolean> {
  if (fleet.config().databases.some(({ name }) => name === database)) return true;
  const { snapshots, missing } = await fleet.collect(['databases']);
  const isKnown = snapshots.some(({ databases }) =>
    databases.some(({ name }) => name === database),
  );
  if (!isKnown) failOnMissing(missing);
  return isKnown;
}

/** @throws CommandError that names the workers without an answer */
export function failOnMissing(missing: ReadonlyMap<number, string>): void {
  if (missing.size === 0) return;
  throw new CommandError(`no answer from ${[...missing.values()].join(', ')}`);
}
