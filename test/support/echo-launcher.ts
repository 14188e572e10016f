import { fileURLToPath } from 'node:url';
import { defaultFleetSettings, defaultSettings } from '../../src/config/schema.ts';
import { ConfigError } from '../../src/errors.ts';
import { Launcher } from '../../src/launcher/launcher.ts';
import { attachSignals } from '../../src/launcher/signals.ts';
import { log } from '../../src/log/logger.ts';

/** A real launcher over echo workers: `echo-launcher.ts FILE SETTINGS FLEET`, the last two JSON. */
const [, , file = '', settings = '{}', fleet = '{}'] = process.argv;
const config = {
  version: 1,
  file,
  settings: { ...defaultSettings(), ...JSON.parse(settings) },
  fleet: { ...defaultFleetSettings(), ...JSON.parse(fleet) },
  databases: [],
  autoDatabase: null,
  users: [],
  peers: [],
  authUsers: null,
  hba: null,
  clientTls: null,
  given: [],
};
const outputs = { stderr: true, logfile: config.settings.logfile, verbose: 0 };
const workerMain = fileURLToPath(new URL('echo-worker.ts', import.meta.url));
try {
  log.configure(outputs);
  const launcher = new Launcher({ config, realFile: file, log: outputs, workerMain });
  attachSignals(launcher);
  if (await launcher.start()) await launcher.finished;
} catch (error) {
  if (!(error instanceof ConfigError)) throw error;
  log.fatal(error.message);
  process.exitCode = 1;
}
