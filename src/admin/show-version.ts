import { text } from './result.ts';
import type { Topic } from './topic.ts';

/** The PgBouncer whose console this one speaks: tools read the number to know what to expect. */
export const PGBOUNCER_VERSION = '1.25.2';

export const showVersion: Topic = {
  columns: [text('version')],
  parts: [],
  isSameEverywhere: true,
  hasProcesses: true,
  rows: ({ snapshots }) => [[`PgBouncer ${PGBOUNCER_VERSION} (pgfleet ${snapshots[0]!.version})`]],
};
