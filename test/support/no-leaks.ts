/**
 * Loaded before a test file (`--import`): fails the run when a socket, a listener or a child process
 * is still open eight seconds after the last test (a closed link lingers for five). The runner is started with `--test-force-exit`, so
 * that such a leak fails the file instead of holding it up.
 */
import { after } from 'node:test';
import { until } from './until.ts';

const KINDS = [
  'TCPSocketWrap',
  'TCPServerWrap',
  'PipeWrap',
  'PipeServerWrap',
  'ProcessWrap',
  'TLSWrap',
];

// The standard streams are pipes too under the runner; they are opened here to be counted.
void [process.stdout, process.stderr];
const openAtStart = openHandles().length;

after(async () => {
  await until('all handles are closed', () => openHandles().length <= openAtStart, {
    deadlineMs: 8_000,
  }).catch(() => {
    const left = openHandles().join(', ');
    throw new Error(
      `still open after the last test: ${left} (${openAtStart} of them at the start)`,
    );
  });
});

function openHandles(): string[] {
  return process.getActiveResourcesInfo().filter((name) => KINDS.includes(name));
}
