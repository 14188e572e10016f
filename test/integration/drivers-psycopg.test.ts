import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { onFleets } from '../support/grid.ts';
import { reportRules } from '../support/programs.ts';
import { REPOSITORY } from '../support/repository.ts';

/** psycopg 3 of Debian: its rules are in Python, and each is a subtest. */

const PYTHON = '/usr/bin/python3';
const SCRIPT = join(REPOSITORY, 'test/support/drivers/psycopg_rules.py');

onFleets('psycopg 3', { needs: { 'python3-psycopg': hasPsycopg } }, async (t, { fleet }) => {
  await reportRules(t, PYTHON, ['-B', SCRIPT, fleet.url()]);
});

function hasPsycopg(): boolean {
  return spawnSync(PYTHON, ['-c', 'import psycopg'], { stdio: 'ignore' }).status === 0;
}
