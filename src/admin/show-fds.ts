import { bytea, int4, int8, text } from './result.ts';
import type { DescriptorRow } from './snapshot.ts';
import { compareNames, type Topic } from './topic.ts';

/**
 * SHOW FDS. PgBouncer hands real descriptors over with it, and secrets that its successor goes on
 * with. Here it is a listing for admins only: descriptors are numbers of the process, and passwords and
 * keys are never told.
 */
export const showFds: Topic = {
  columns: [
    int4('fd'),
    text('task'),
    text('user'),
    text('database'),
    text('addr'),
    int4('port'),
    int8('cancel'),
    int4('link'),
    text('client_encoding'),
    text('std_strings'),
    text('datestyle'),
    text('timezone'),
    text('password'),
    bytea('scram_client_key'),
    bytea('scram_server_key'),
  ],
  parts: ['descriptors'],
  isSameEverywhere: false,
  hasProcesses: true,
  isForAdmins: true,
  rows: ({ snapshots }) =>
    snapshots
      .flatMap(({ descriptors }) => descriptors)
      .sort(compare)
      .map((row) => [
        row.fd,
        row.task,
        row.user,
        row.database,
        row.addr,
        row.port,
        row.cancel,
        row.link,
        row.client_encoding,
        row.std_strings,
        row.datestyle,
        row.timezone,
        null,
        null,
        null,
      ]),
};

/** Listening sockets, then clients that log in, then pool by pool. */
function compare(a: DescriptorRow, b: DescriptorRow): number {
  if (isPooled(a) && isPooled(b)) {
    const byPool =
      compareNames(a.database ?? '', b.database ?? '') || compareNames(a.user ?? '', b.user ?? '');
    if (byPool !== 0) return byPool;
  }
  return a.place - b.place;
}

function isPooled({ place }: DescriptorRow): boolean {
  return place > 1;
}
