import { type AuthUser, parseAuthFile } from './auth-file.ts';
import type { Given } from './cross-checks.ts';
import { readHbaFile } from './hba-file.ts';
import type { HbaConfig } from './hba-rules.ts';
import { readIdentFile } from './ident-file.ts';
import { osErrorText, type Problem } from './problem.ts';
import type { Place, RuleFiles } from './rule-lines.ts';
import type { Settings } from './schema.ts';

/** What the files say that decide who may come in. */
interface AuthFiles {
  readonly authUsers: readonly AuthUser[] | null;
  readonly hba: HbaConfig | null;
}

/** Reads `auth_file`, `auth_hba_file` and `auth_ident_file` where `auth_type` asks for them. */
export function readAuthFiles(
  settings: Settings,
  given: readonly Given[],
  files: RuleFiles,
  problems: Problem[],
): AuthFiles {
  const authUsers = readUsers(settings, given, files, problems);
  const hba = settings.auth_type === 'hba' ? readHba(settings, given, files, problems) : null;
  return { authUsers, hba };
}

/**
 * As in PgBouncer the start goes on without a file that cannot be read, and with the users before a
 * broken line. Null when no file is wanted or it cannot be read.
 */
function readUsers(
  settings: Settings,
  given: readonly Given[],
  files: RuleFiles,
  problems: Problem[],
): readonly AuthUser[] | null {
  const path = settings.auth_file;
  if (path === null || path === '') return null;
  if (settings.auth_type === 'any' || settings.auth_type === 'pam') return null;
  let text: string;
  try {
    text = files.readFile(path);
  } catch (error) {
    const why = `could not open auth_file ${path}: ${osErrorText(error)}`;
    const place = placeOf(given, 'auth_file');
    problems.push({ ...place, key: 'auth_file', text: why, level: 'warning' });
    return null;
  }
  const { users, problem } = parseAuthFile(text);
  if (problem !== null) {
    const why = `${problem.text}: the users from here on are left out`;
    problems.push({ file: path, line: problem.line, key: '', text: why, level: 'warning' });
  }
  return users;
}

/** Null with an error among the problems. */
function readHba(
  settings: Settings,
  given: readonly Given[],
  files: RuleFiles,
  problems: Problem[],
): HbaConfig | null {
  const { auth_hba_file: path, auth_ident_file: identPath } = settings;
  if (path === '') {
    const text = 'auth_type=hba requires auth_hba_file';
    problems.push({ ...placeOf(given, 'auth_type'), key: 'auth_type', text, level: 'error' });
    return null;
  }
  const ident =
    identPath === null || identPath === ''
      ? { maps: [], problems: [] }
      : readIdentFile(identPath, placeOf(given, 'auth_ident_file'), files);
  const isIdentRead = ident.problems.length === 0;
  const maps = isIdentRead ? new Set(ident.maps.map(({ name }) => name)) : null;
  const hba = readHbaFile(path, placeOf(given, 'auth_hba_file'), maps, files);
  problems.push(...ident.problems, ...hba.problems);
  return { rules: hba.rules, maps: ident.maps };
}

/** Where a setting of `[pgbouncer]` is given. */
function placeOf(given: readonly Given[], key: keyof Settings): Place {
  const found = given.find((one) => one.section === 'pgbouncer' && one.key === key);
  return { file: found?.file ?? '', line: found?.line ?? 0 };
}
