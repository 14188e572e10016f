/** Every text with which a connection or a server ends, or a console command fails. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { startPostgres } from '../support/postgres.ts';
import { rules } from '../support/rules.ts';
import { AT_LOGIN } from './errors/at-login.ts';
import { startFakes } from './errors/fakes.ts';
import { IN_SESSION } from './errors/in-session.ts';
import { IN_THE_LOG } from './errors/in-the-log.ts';
import { ON_THE_CONSOLE } from './errors/on-console.ts';
import type { Place, Provocations } from './errors/provocations.ts';
import { ERROR_TABLE, type ErrorText } from './errors/table.ts';

const ALL: readonly Provocations[] = [...AT_LOGIN, ...IN_SESSION, ...ON_THE_CONSOLE, ...IN_THE_LOG];

let place: Place;
before(async () => {
  place = { postgres: await startPostgres(), fakes: await startFakes() };
});

for (const { title, options, cases } of ALL) {
  rules(
    `texts ${title}`,
    () => options(place),
    cases.map(({ text, check, ...notes }) => ({
      ...notes,
      name: text,
      check: (pooler, t) => check(pooler, t, place),
    })),
  );
}

const root = join(import.meta.dirname, '../..');

/** Paths and texts of the TypeScript files below a folder of the repository. */
function sources(folder: string): ReadonlyMap<string, string> {
  const names = readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' });
  const files = names.filter((name) => name.endsWith('.ts'));
  return new Map(files.map((name) => [name, readFileSync(join(root, folder, name), 'utf8')]));
}

/** Whether a source holds what of a text does not vary. */
function holds(source: string, text: string): boolean {
  const parts = text.split(/%[a-z]+/).filter((part) => part.length > 2);
  return parts.every(
    (part) => source.includes(part) || source.includes(part.replaceAll("'", "\\'")),
  );
}

const isNever = ({ proof }: ErrorText): boolean => proof.kind === 'never';

test('every text of the table is provoked, or in a list of those to leave out', () => {
  const provoked = new Set(ALL.flatMap(({ cases }) => cases.map(({ text }) => text)));
  const files = sources('test');
  const open = ERROR_TABLE.filter(({ text, proof }) => {
    if (proof.kind === 'here') return !provoked.has(text);
    if (proof.kind !== 'test') return false;
    const isThere = ([name, source]: [string, string]): boolean =>
      name.endsWith('.test.ts') && source.includes(proof.name) && holds(source, text);
    return ![...files].some(isThere);
  });
  assert.deepEqual(
    open.map(({ text }) => text),
    [],
  );
});

test('every text that is provoked is one of the table', () => {
  const known = new Set(
    ERROR_TABLE.filter(({ proof }) => proof.kind === 'here').map(({ text }) => text),
  );
  const strangers = ALL.flatMap(({ cases }) => cases).filter(({ text }) => !known.has(text));
  assert.deepEqual(
    strangers.map(({ text }) => text),
    [],
  );
});

test('every text that may come stands in the sources', () => {
  const all = [...sources('src').values()].join('\n');
  const missing = ERROR_TABLE.filter(
    (entry) => !isNever(entry) && !holds(all, entry.source ?? entry.text),
  );
  assert.deepEqual(
    missing.map(({ text }) => text),
    [],
  );
});

// In a test of its own, since the watch for leaks is the first of the hooks that run after all.
test('the servers can be stopped when all has been asked', async () => {
  for (const fake of Object.values(place.fakes)) await fake.stop();
  await place.postgres.dispose();
});
