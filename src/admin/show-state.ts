import { text } from './result.ts';
import type { WorkerSnapshot } from './snapshot.ts';
import type { Topic } from './topic.ts';

const STATES = ['active', 'paused', 'suspended'] as const;

/** SHOW STATE: of the three exactly one is `yes`. */
export const showState: Topic = {
  columns: [text('key'), text('value')],
  parts: [],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) => {
    const state = stateOf(snapshots);
    return STATES.map((name) => [name, name === state ? 'yes' : 'no']);
  },
};

/** A fleet that is only partly back from a pause is not active yet. */
function stateOf(snapshots: readonly WorkerSnapshot[]): WorkerSnapshot['state'] {
  const has = (state: WorkerSnapshot['state']): boolean =>
    snapshots.some((snapshot) => snapshot.state === state);
  if (has('suspended')) return 'suspended';
  return has('paused') ? 'paused' : 'active';
}
