import { controlPlan } from './command.ts';
import type { Fleet } from './fleet.ts';
import type { Plan } from './plan.ts';

/** SET key = value: one setting of the whole fleet, until the next RELOAD. */
export function planSet(key: string, value: string, fleet: Fleet): Plan {
  return controlPlan(`SET ${key}=${value}`, fleet, { name: 'set', key, value });
}
