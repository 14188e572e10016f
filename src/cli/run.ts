import { realpathSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import type { FileReads } from '../config/file-reads.ts';
import { formatProblem, loadConfig } from '../config/load.ts';
import type { Problem } from '../config/problem.ts';
import { ConfigError } from '../errors.ts';
import { assumeIdentity } from '../launcher/accounts.ts';
import { Launcher } from '../launcher/launcher.ts';
import { passedDescriptors } from '../launcher/passed-sockets.ts';
import { attachSignals } from '../launcher/signals.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import { isInBackground, reportToForeground, runInBackground } from './daemon.ts';
import type { RunOptions } from './options.ts';

/** Where the program begins, and the arguments it was given. */
export interface Invocation {
  readonly mainUrl: string;
  readonly args: readonly string[];
}

/** Runs a fleet until it is told to end. Returns the exit status. */
export async function run(options: RunOptions, invocation: Invocation): Promise<number> {
  const isBackground = options.daemon && isInBackground();
  const stderr = !options.quiet && !isBackground;
  const passed = passedDescriptors(process.env, process.pid);
  log.configure({ stderr, logfile: '', verbose: options.verbose });
  try {
    if (options.reboot) throw new ConfigError('online restart (-R) is not supported yet');
    const { config, reads } = readConfig(options.file);
    const outputsOf = (next: Config) => logOutputs(next, stderr, options.verbose);
    const outputs = outputsOf(config);
    if (options.daemon && config.settings.pidfile === '') {
      throw new ConfigError('daemon needs pidfile configured');
    }
    if (options.daemon && passed.length > 0) {
      throw new ConfigError('sockets passed from service manager cannot be used with -d');
    }
    if (options.daemon && !isBackground) {
      return await runInBackground(invocation.args, invocation.mainUrl);
    }
    // The account may be one that cannot enter the file's folder.
    const realFile = realpathSync(config.file);
    takeIdentity(options.user ?? config.settings.user);
    openLog(outputs);
    return await runFleet(
      new Launcher({ config, reads, realFile, log: outputs, outputsOf, passed }),
    );
  } catch (error) {
    const text = error instanceof ConfigError ? error.message : stackOf(error);
    log.fatal(text);
    if (isBackground) reportToForeground({ kind: 'fatal', text });
    return 1;
  }
}

async function runFleet(launcher: Launcher): Promise<number> {
  attachSignals(launcher);
  if (await launcher.start()) {
    reportToForeground({ kind: 'up' });
    await launcher.finished;
  }
  return launcher.exitStatus;
}

function readConfig(file: string): { config: Config; reads: FileReads } {
  const { config, problems, reads } = loadConfig(file);
  for (const problem of problems) {
    const text = formatProblem(problem);
    if (problem.level === 'error') log.error(text);
    else log.warning(text);
  }
  if (config === null) throw new ConfigError(startFailure(problems));
  return { config, reads };
}

/** PgBouncer has a line of its own for TLS, which it sets up when the file has been read. */
function startFailure(problems: readonly Problem[]): string {
  const errors = problems.filter(({ level }) => level === 'error');
  const isTls = errors.every(({ key }) => key.startsWith('client_tls_'));
  return isTls ? 'TLS setup failed' : 'cannot load config file';
}

/** `verbose` in the file outranks `-v`, as in PgBouncer. */
function logOutputs(config: Config, stderr: boolean, verbose: number): LogOutputs {
  const { settings, fleet, given } = config;
  const { syslog, syslog_ident: ident, syslog_facility: facility } = settings;
  return {
    stderr,
    logfile: settings.logfile,
    verbose: given.includes('verbose') ? settings.verbose : verbose,
    format: fleet.log_format,
    syslog: syslog ? { ident, facility } : null,
  };
}

/** The account is changed before anything is created, so that all of it belongs to that account. */
function takeIdentity(user: string | null): void {
  if (user !== null && user !== '') assumeIdentity(user);
  if (process.getuid!() === 0) throw new ConfigError('PgBouncer should not run as root');
}

function openLog(outputs: LogOutputs): void {
  try {
    log.configure(outputs);
  } catch (error) {
    // It would be written nowhere under -q, and an operator has to see why nothing runs.
    log.configure({ ...outputs, stderr: true, logfile: '' });
    throw new ConfigError(`Cannot open logfile: '${outputs.logfile}': ${osErrorText(error)}`);
  }
}

/** A mistake of the program's own: where it was made has to reach the log as well. */
function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
