import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { after } from 'node:test';
import { makeFolder, removeFolder } from '../support/folders.ts';
import { onFleets } from '../support/grid.ts';
import { reportRules, runProgram } from '../support/programs.ts';
import { REPOSITORY } from '../support/repository.ts';

/** The JDBC driver of Debian: its rules are in Java, and each is a subtest. */

const DRIVER = '/usr/share/java/postgresql.jar';
const SOURCE = join(REPOSITORY, 'test/support/drivers/JdbcRules.java');

let classes: Promise<string> | null = null;

after(async () => {
  if (classes !== null) await removeFolder(await classes);
});

onFleets(
  'JDBC',
  {
    // The driver names it in its StartupMessage, as PgBouncer's documentation warns.
    settings: { ignore_startup_parameters: 'extra_float_digits' },
    needs: {
      'libpostgresql-jdbc-java': () => existsSync(DRIVER),
      'default-jdk-headless': () =>
        spawnSync('javac', ['-version'], { stdio: 'ignore' }).status === 0,
    },
  },
  async (t, { fleet }) => {
    classes ??= compiled();
    const url = `jdbc:postgresql://${fleet.host}:${fleet.port}/app`;
    const path = `${DRIVER}:${await classes}`;
    const options = ['-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-Xmx256m'];
    await reportRules(t, 'java', [...options, '-cp', path, 'JdbcRules', url, 'app', 'app']);
  },
);

/** The folder with the compiled rules. */
async function compiled(): Promise<string> {
  const folder = await makeFolder('jdbc');
  const args = ['-encoding', 'UTF-8', '-cp', DRIVER, '-d', folder, SOURCE];
  const { status, stderr } = await runProgram('javac', args);
  assert.equal(status, 0, stderr);
  return folder;
}
