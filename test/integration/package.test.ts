import assert from 'node:assert/strict';
import { execFile, spawnSync } from 'node:child_process';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { lendModules, makeClone, plainEnvironment } from '../support/clone.ts';
import { copyReadable, makeFolder, removeFolder } from '../support/folders.ts';
import { startPgfleet } from '../support/pgfleet.ts';
import { startPostgres } from '../support/postgres.ts';
import { NODE, REPOSITORY } from '../support/repository.ts';

const run = promisify(execFile);
const NPM_MS = 180_000;

let folder = '';
/** Where the package is installed: a project that is not this one. */
let project = '';
let packed: readonly string[] = [];

before(async () => {
  folder = await makeFolder('package');
  const clone = join(folder, 'clone');
  await makeClone(clone);
  await lendModules(clone, false);
  const options = { cwd: clone, env: plainEnvironment(), timeout: NPM_MS };
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', folder], options);
  const [report] = Object.values(parseReport(stdout));
  packed = report?.files.map(({ path }) => path) ?? [];
  const file = join(folder, report?.filename ?? '');

  project = join(folder, 'project');
  await mkdir(project);
  await writeFile(join(project, 'package.json'), '{ "private": true }\n');
  const args = ['install', '--no-audit', '--no-fund', '--prefer-offline', file];
  await run('npm', args, { ...options, cwd: project });
});

after(() => removeFolder(folder));

test('the package holds the build and the program, and neither sources nor tests', () => {
  assert.ok(packed.includes('bin/pgfleet') && packed.includes('dist/cli/main.js'));
  assert.ok(packed.includes('dist/worker/main.js') && packed.includes('LICENSE'));
  const foreign = packed.filter((path) => /^(?:src|test|bench)\/|\.ts$/.test(path));
  assert.deepEqual(foreign, []);
});

test("the installed pgfleet tells its version on the machine's own Node", async () => {
  const manifest = JSON.parse(await readFile(join(REPOSITORY, 'package.json'), 'utf8')) as {
    version: string;
  };
  const { stdout } = await run(join(project, 'node_modules/.bin/pgfleet'), ['-V'], {
    env: plainEnvironment(),
  });
  assert.match(stdout, new RegExp(`\\bpgfleet ${manifest.version}\\b`));
});

test('the installed pgfleet checks a file and exits with 1 when it has problems', async () => {
  const program = join(project, 'node_modules/.bin/pgfleet');
  const file = join(folder, 'checked.ini');
  const check = async (text: string): Promise<{ status: number | null; output: string }> => {
    await writeFile(file, text);
    const env = plainEnvironment();
    const { status, stdout, stderr } = spawnSync(program, ['check', file], { env });
    return { status, output: `${stdout}${stderr}` };
  };
  const good = await check('[databases]\n* = host=127.0.0.1\n[pgbouncer]\nlisten_port = 7000\n');
  assert.equal(good.status, 0, good.output);
  const bad = await check('[databases]\n[pgbouncer]\nlisten_port = many\npool_mode = none\n');
  assert.equal(bad.status, 1, bad.output);
  assert.match(bad.output, /checked\.ini:3: listen_port: /);
  assert.match(bad.output, /checked\.ini:4: pool_mode: /);
});

test('the installed pgfleet runs a fleet', async (t) => {
  const postgres = await startPostgres();
  t.after(() => postgres.dispose());
  // The servers' account must be able to run it, whatever mode files are made with.
  const readable = join(folder, 'readable');
  await mkdir(readable);
  await copyReadable(join(project, 'node_modules'), readable);
  const program = join(readable, 'node_modules/pgfleet/bin/pgfleet');
  await copyReadable(NODE, join(readable, 'node'));
  const files = { node: join(readable, 'node'), program };
  const fleet = await startPgfleet({ postgres, size: 2, files });
  t.after(() => fleet.stop());
  const client = await fleet.client();
  assert.deepEqual((await client.query('SELECT 6 * 7 AS n')).rows, [{ n: 42 }]);
  await client.end();
});

interface PackReport {
  readonly filename: string;
  readonly files: readonly { readonly path: string }[];
}

/** npm prints a list, and from version 12 on an object by package name; scripts may print before. */
function parseReport(stdout: string): Record<string, PackReport> | PackReport[] {
  const start = stdout.search(/^[[{]$/m);
  return JSON.parse(stdout.slice(start)) as Record<string, PackReport> | PackReport[];
}
