import { parseArgs } from 'node:util';
import type { TopOptions } from './top/top.ts';

export const USAGE = `pgfleet is a PgBouncer-compatible connection pooler that uses every core.

Usage:
  pgfleet [OPTION]... CONFIG_FILE
  pgfleet check CONFIG_FILE      report every problem in the file and exit
  pgfleet check --diff CONFIG_FILE
                       report what a reload of the running fleet would change
  pgfleet top CONFIG_FILE|URL    watch a running fleet; URL is of its console

Options:
  -d, --daemon         run in the background (needs pidfile)
  -q, --quiet          do not log to stderr
  -R, --reboot         replace a running fleet (not in this version)
  -u, --user=USERNAME  assume the identity of USERNAME
  -v, --verbose        log more; may be given up to three times
  -V, --version        show the version and exit
  -h, --help           show this help and exit
  --interval=SECONDS   of top: between two readings (default 2)
  --count=N            of top: end after so many
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
  | { readonly kind: 'top'; readonly options: TopOptions }
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
  const isTop = positionals[0] === 'top';
  const [file, ...more] = isCheck || isTop ? positionals.slice(1) : positionals;
  if (file === undefined || more.length > 0) {
    return { kind: 'misuse', text: 'pgfleet: no configuration file specified' };
  }
  if (isTop) return topCommand(file, values.interval, values.count);
  if (values.interval !== undefined || values.count !== undefined) {
    return { kind: 'misuse', text: 'pgfleet: --interval and --count are options of top' };
  }
  if (isCheck) return { kind: 'check', file, isDiff: values.diff ?? false };
  if (values.diff) return { kind: 'misuse', text: 'pgfleet: --diff is an option of check' };
  const { daemon = false, quiet = false, reboot = false, user = null, verbose = [] } = values;
  const level = Math.min(verbose.length, MAX_VERBOSE);
  return { kind: 'run', options: { file, daemon, quiet, reboot, user, verbose: level } };
}

function topCommand(target: string, interval = '2', count?: string): Command {
  const seconds = Number(interval);
  const times = count === undefined ? null : Number(count);
  if (!(seconds >= 0.1 && seconds <= 3600)) {
    return { kind: 'misuse', text: 'pgfleet: --interval must be 0.1 to 3600 seconds' };
  }
  if (times !== null && !(Number.isInteger(times) && times > 0)) {
    return { kind: 'misuse', text: 'pgfleet: --count must be a number from 1 on' };
  }
  return { kind: 'top', options: { target, interval: seconds, count: times } };
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
      interval: { type: 'string' },
      count: { type: 'string' },
      version: { type: 'boolean', short: 'V' },
      help: { type: 'boolean', short: 'h' },
    },
  });
}
