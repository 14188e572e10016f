import { parseArgs } from 'node:util';

export const USAGE = `pgfleet is a PgBouncer-compatible connection pooler that uses every core.

Usage:
  pgfleet [OPTION]... CONFIG_FILE
  pgfleet check CONFIG_FILE      report every problem in the file and exit
  pgfleet check --diff CONFIG_FILE
                       report what a reload of the running fleet would change

Options:
  -d, --daemon         run in the background (needs pidfile)
  -q, --quiet          do not log to stderr
  -R, --reboot         replace a running fleet (not in this version)
  -u, --user=USERNAME  assume the identity of USERNAME
  -v, --verbose        log more; may be given up to three times
  -V, --version        show the version and exit
  -h, --help           show this help and exit
`;

export const TRY_HELP = 'Try "pgfleet --help" for more information.';

export interface RunOptions {
  readonly file: string;
  readonly daemon: boolean;
  readonly quiet: boolean;
  readonly reboot: boolean;
  readonly user: string | null;
  /** How often `-v` was given, at most 3. */
  readonly verbose: number;
}

export type Command =
  | { readonly kind: 'run'; readonly options: RunOptions }
  | { readonly kind: 'check'; readonly file: string; readonly isDiff: boolean }
  | { readonly kind: 'help' }
  | { readonly kind: 'version' }
  | { readonly kind: 'misuse'; readonly text: string };

const MAX_VERBOSE = 3;

/** Reads the command line, without the program's own name. Options are PgBouncer's. */
export function readCommandLine(args: readonly string[]): Command {
  let parsed: ReturnType<typeof parse>;
  try {
    parsed = parse(args);
  } catch (error) {
    // The rest of Node's text is advice about file names that begin with a dash.
    const [text] = (error instanceof Error ? error.message : String(error)).split('. ');
    return { kind: 'misuse', text: `pgfleet: ${text}` };
  }
  const { values, positionals } = parsed;
  if (values.help) return { kind: 'help' };
  if (values.version) return { kind: 'version' };
  const isCheck = positionals[0] === 'check';
  const [file, ...more] = isCheck ? positionals.slice(1) : positionals;
  if (file === undefined || more.length > 0) {
    return { kind: 'misuse', text: 'pgfleet: no configuration file specified' };
  }
  if (isCheck) return { kind: 'check', file, isDiff: values.diff ?? false };
  if (values.diff) return { kind: 'misuse', text: 'pgfleet: --diff is an option of check' };
  const { daemon = false, quiet = false, reboot = false, user = null, verbose = [] } = values;
  const level = Math.min(verbose.length, MAX_VERBOSE);
  return { kind: 'run', options: { file, daemon, quiet, reboot, user, verbose: level } };
}

function parse(args: readonly string[]) {
  return parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      daemon: { type: 'boolean', short: 'd' },
      quiet: { type: 'boolean', short: 'q' },
      reboot: { type: 'boolean', short: 'R' },
      user: { type: 'string', short: 'u' },
      verbose: { type: 'boolean', short: 'v', multiple: true },
      diff: { type: 'boolean' },
      version: { type: 'boolean', short: 'V' },
      help: { type: 'boolean', short: 'h' },
    },
  });
}
