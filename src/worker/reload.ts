import { classifySecret, type StoredSecret } from '../auth/secret.ts';
import { parseUserlist } from '../auth/userlist.ts';
import type { Config } from '../config/config.ts';
import { ConfigIndex } from '../config/effective.ts';
import type { FromWorker, ReloadPrepare, ReloadStep } from '../ipc/messages.ts';
import { type LogOutputs, log } from '../log/logger.ts';
import { osErrorText } from '../log/os-error.ts';
import { ServerTls } from '../tls/server-tls.ts';
import { TlsSetupError } from '../tls/setup-error.ts';
import type { Worker } from './worker.ts';

/** A configuration with all that is built out of it before it may be put in force. */
export interface BuiltConfig {
  readonly index: ConfigIndex;
  readonly secrets: ReadonlyMap<string, StoredSecret>;
  readonly tls: ServerTls;
}

/**
 * Builds what can fail.
 * @param running what is in force; secrets of an unchanged `auth_file` are shared with it, because
 * keys that were derived from them are cached with them
 * @throws TlsSetupError when a TLS setting or a file that one names cannot be used
 */
export function buildConfig(config: Config, running: BuiltConfig | null): BuiltConfig {
  const tls = new ServerTls(config.settings, config.fleet);
  const isSame = running !== null && running.index.config.authFileText === config.authFileText;
  const secrets = isSame ? running.secrets : readUsers(config);
  return { index: new ConfigIndex(config), secrets, tls };
}

function readUsers({ authFileText, settings }: Config): ReadonlyMap<string, StoredSecret> {
  if (authFileText === null) return new Map();
  const { users, problems } = parseUserlist(authFileText);
  for (const { line, text } of problems) log.error(`${text} (${settings.auth_file}:${line})`);
  return users;
}

interface Prepared {
  readonly version: number;
  readonly built: BuiltConfig;
  readonly outputs: LogOutputs;
}

/** The worker's part of a reload, which the launcher leads; answers go back over the channel. */
export class WorkerReload {
  readonly #worker: Pick<Worker, 'built' | 'reconfigure' | 'release'>;
  readonly #incarnation: number;
  readonly #send: (message: FromWorker) => void;
  #prepared: Prepared | null = null;

  constructor(
    worker: Pick<Worker, 'built' | 'reconfigure' | 'release'>,
    incarnation: number,
    send: (message: FromWorker) => void,
  ) {
    this.#worker = worker;
    this.#incarnation = incarnation;
    this.#send = send;
  }

  prepare({ version, config, log: outputs }: ReloadPrepare): void {
    let refusal: string | null = null;
    try {
      const built = buildConfig(config, this.#worker.built);
      this.#prepared = { version, built, outputs };
    } catch (error) {
      this.#prepared = null;
      const why = error instanceof TlsSetupError ? error.why : (error as Error).message;
      refusal = `TLS configuration could not be reloaded, keeping old configuration: ${why}`;
    }
    this.#answer(version, 'prepare', refusal);
  }

  step(version: number, step: Exclude<ReloadStep, 'prepare'>): void {
    switch (step) {
      case 'abort':
        if (this.#prepared?.version === version) this.#prepared = null;
        break;
      case 'commit': {
        const prepared = this.#prepared;
        this.#prepared = null;
        if (prepared?.version !== version) {
          this.#answer(version, step, 'it has not prepared this configuration');
          return;
        }
        configureLog(prepared.outputs);
        this.#worker.reconfigure(prepared.built);
        this.#answer(version, step, null);
        break;
      }
      case 'release':
        this.#worker.release();
        this.#answer(version, step, null);
        break;
      default:
        step satisfies never;
    }
  }

  #answer(version: number, step: ReloadStep, refusal: string | null): void {
    const incarnation = this.#incarnation;
    this.#send({ kind: 'reload_answer', incarnation, version, step, refusal });
  }
}

/** Opens the log file, the same or another; when that fails the old one stays in use. */
function configureLog(outputs: LogOutputs): void {
  try {
    log.configure(outputs);
  } catch (error) {
    log.error(`Cannot open logfile: '${outputs.logfile}': ${osErrorText(error)}`);
  }
}

/** Stored secrets of passwords that stand in connection strings. */
export class EntrySecrets {
  readonly #byPassword = new Map<string, StoredSecret>();

  /** One object per password, because what is derived from it is cached with it. */
  of(password: string): StoredSecret {
    let secret = this.#byPassword.get(password);
    if (secret === undefined) {
      secret = classifySecret(password);
      this.#byPassword.set(password, secret);
    }
    return secret;
  }

  /** Forgets the passwords that a configuration has no more. */
  retain({ databases, autoDatabase }: Config): void {
    const kept = new Set([...databases, autoDatabase].map((entry) => entry?.password));
    for (const password of this.#byPassword.keys()) {
      if (!kept.has(password)) this.#byPassword.delete(password);
    }
  }
}
