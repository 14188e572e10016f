import assert from 'node:assert/strict';
import { test } from 'node:test';
import { passedDescriptors } from '../../../src/launcher/passed-sockets.ts';

for (const [environment, expected] of [
  [{ LISTEN_PID: '7', LISTEN_FDS: '2' }, [3, 4]],
  [{ LISTEN_PID: '7', LISTEN_FDS: '1', LISTEN_FDNAMES: 'a' }, [3]],
  [{ LISTEN_PID: 'parent', LISTEN_FDS: '1' }, [3]],
  [{ LISTEN_PID: '8', LISTEN_FDS: '2' }, []],
  [{ LISTEN_PID: '7', LISTEN_FDS: '0' }, []],
  [{ LISTEN_PID: '7', LISTEN_FDS: 'x' }, []],
  [{ LISTEN_FDS: '2' }, []],
  [{}, []],
] as const) {
  test(`descriptors that process 7 is passed by ${JSON.stringify(environment)}`, () => {
    const left: NodeJS.ProcessEnv = { ...environment, PATH: '/bin' };
    assert.deepEqual(passedDescriptors(left, 7), [...expected]);
    assert.deepEqual(left, { PATH: '/bin' }, 'the variables are for nobody else');
  });
}
