import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { UnixOwner } from '../../../src/client/unix-owner.ts';

async function socketWith(t: TestContext, mode: number): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'pgfleet-owner-'));
  const path = join(folder, 's');
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(path, resolve));
  t.after(() => {
    server.close();
    rmSync(folder, { recursive: true });
  });
  chmodSync(path, mode);
  return path;
}

test('a socket of mode 0600 has clients of the account itself only', async (t) => {
  const owner = new UnixOwner(await socketWith(t, 0o600), 0o600);
  assert.equal(await owner.isKnown(), true);
  assert.equal(await owner.name(), userInfo().username);
});

for (const mode of [0o777, 0o660, 0o606, 0o620, 0o602, 0o700, 0o4600]) {
  test(`nothing is known of the clients of a socket of mode 0${mode.toString(8)}`, async (t) => {
    const owner = new UnixOwner(await socketWith(t, mode), 0o600);
    assert.equal(await owner.isKnown(), false);
    assert.equal(await owner.name(), null);
  });
}

test('the mode is looked at each time', async (t) => {
  const path = await socketWith(t, 0o600);
  const owner = new UnixOwner(path, 0o600);
  assert.equal(await owner.isKnown(), true);
  chmodSync(path, 0o666);
  assert.equal(await owner.isKnown(), false);
});

test('a socket that was wider before may still have clients from that time', async (t) => {
  assert.equal(await new UnixOwner(await socketWith(t, 0o600), 0o777).isKnown(), false);
});

test('nothing is known without a socket, or of a file that is none', async (t) => {
  assert.equal(await new UnixOwner(null, 0o600).isKnown(), false);
  const path = await socketWith(t, 0o600);
  assert.equal(await new UnixOwner(`${path}.gone`, 0o600).isKnown(), false);
  writeFileSync(`${path}.file`, '', { mode: 0o600 });
  assert.equal(await new UnixOwner(`${path}.file`, 0o600).isKnown(), false);
});

test('a socket of another account says nothing of its clients', async (t) => {
  const path = await socketWith(t, 0o600);
  t.mock.method(process as { getuid: () => number }, 'getuid', () => userInfo().uid + 1);
  assert.equal(await new UnixOwner(path, 0o600).isKnown(), false);
});
