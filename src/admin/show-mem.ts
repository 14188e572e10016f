import { int4, type Row, text } from './result.ts';
import type { ProcessRow } from './snapshot.ts';
import type { Topic } from './topic.ts';

const PAGE_BYTES = 4096;

/**
 * SHOW MEM: PgBouncer's columns. Its rows are the caches of its allocator, ours the parts of the memory
 * of the processes, in pages, which add up to what the operating system says.
 */
export const showMem: Topic = {
  columns: [text('name'), int4('size'), int4('used'), int4('free'), int4('memtotal')],
  parts: ['process'],
  isSameEverywhere: false,
  hasProcesses: true,
  rows: ({ snapshots }) => {
    const running = snapshots.flatMap((snapshot) => snapshot.running ?? []);
    const sum = (bytesOf: (row: ProcessRow) => number): number =>
      running.reduce((total, row) => total + bytesOf(row), 0);
    return [
      pages(
        'heap',
        sum((row) => row.heapUsedBytes),
        sum((row) => row.heapBytes),
      ),
      pages(
        'buffers',
        sum((row) => row.externalBytes),
      ),
      pages(
        'other',
        sum(({ rssBytes, heapBytes, externalBytes }) =>
          Math.max(rssBytes - heapBytes - externalBytes, 0),
        ),
      ),
    ];
  },
};

function pages(name: string, usedBytes: number, allBytes: number = usedBytes): Row {
  const used = Math.ceil(usedBytes / PAGE_BYTES);
  const free = Math.max(Math.ceil(allBytes / PAGE_BYTES) - used, 0);
  return [name, PAGE_BYTES, used, free, PAGE_BYTES * (used + free)];
}
