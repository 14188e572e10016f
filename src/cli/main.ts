import { osErrorCode } from '../log/os-error.ts';
import { PRODUCT, RUNTIME } from '../log/version.ts';
import { runCheck } from './check.ts';
import { runDiff } from './diff.ts';
import { type Command, readCommandLine, TRY_HELP, USAGE } from './options.ts';
import { run } from './run.ts';

/** Runs one command. Returns the exit status. */
async function runCommand(command: Command, args: readonly string[]): Promise<number> {
  switch (command.kind) {
    case 'help':
      process.stdout.write(USAGE);
      return 0;
    case 'version':
      process.stdout.write(`${PRODUCT}\n${RUNTIME.replaceAll(', ', '\n')}\n`);
      return 0;
    case 'misuse':
      process.stderr.write(`${command.text}\n${TRY_HELP}\n`);
      return 1;
    case 'check':
      return command.isDiff
        ? await runDiff(command.file, process.stdout)
        : runCheck(command.file, process.stdout);
    case 'top': {
      // With the driver, which a fleet has no use for.
      const { runTop } = await import('./top/top.ts');
      return await runTop(command.options);
    }
    case 'run':
      return await run(command.options, { mainUrl: import.meta.url, args });
  }
}

// Whoever reads our output, `head` for one, may have read enough.
process.stdout.on('error', (error) => {
  if (osErrorCode(error) !== 'EPIPE') throw error;
});
const args = process.argv.slice(2);
process.exitCode = await runCommand(readCommandLine(args), args);
