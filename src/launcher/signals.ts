import type { StopMode } from '../ipc/control.ts';
import { log } from '../log/logger.ts';

/** What signals act on: the launcher. */
export interface SignalTarget {
  /** Paused or suspended. */
  readonly isPaused: boolean;
  readonly isSuspended: boolean;
  readonly isStopping: boolean;
  /** Exit status of the program. */
  exitStatus: number;
  stop(mode: StopMode): void;
  pause(): void;
  resume(): void;
  requestReload(): void;
}

const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGQUIT', 'SIGHUP', 'SIGUSR1', 'SIGUSR2'] as const;
export type FleetSignal = (typeof SIGNALS)[number];

/** Makes this process's signals act on the fleet. */
export function attachSignals(target: SignalTarget): void {
  for (const signal of SIGNALS) process.on(signal, () => onSignal(signal, target));
}

/** What a signal does, in PgBouncer's words and order: the line is written before its effect. */
export function onSignal(signal: FleetSignal, target: SignalTarget): void {
  switch (signal) {
    case 'SIGTERM':
    case 'SIGINT':
      onStop(signal, target);
      break;
    case 'SIGQUIT':
      log.info('got SIGQUIT, fast exit');
      target.stop('now');
      break;
    case 'SIGHUP':
      log.info('got SIGHUP, re-reading config');
      target.requestReload();
      break;
    case 'SIGUSR1':
      if (target.isPaused) {
        log.info('got SIGUSR1, but already paused/suspended');
      } else {
        log.info('got SIGUSR1, pausing all activity');
        target.pause();
      }
      break;
    case 'SIGUSR2':
      onResume(target);
      break;
  }
}

function onStop(signal: 'SIGTERM' | 'SIGINT', target: SignalTarget): void {
  if (target.isStopping) {
    log.info(`got ${signal} while shutting down, fast exit`);
    target.stop('now');
    return;
  }
  const isTerm = signal === 'SIGTERM';
  log.info(
    isTerm
      ? 'got SIGTERM, shutting down, waiting for all clients disconnect'
      : 'got SIGINT, shutting down, waiting for all servers connections to be released',
  );
  if (target.isSuspended) {
    // Neither would come about: nobody is heard any more.
    log.fatal('suspend was in progress, going down immediately');
    target.exitStatus = 1;
    target.stop('now');
  } else {
    target.stop(isTerm ? 'wait_for_clients' : 'wait_for_servers');
  }
}

function onResume(target: SignalTarget): void {
  if (target.isStopping) {
    log.info('got SIGUSR2 while shutting down, ignoring');
  } else if (target.isPaused) {
    log.info(`got SIGUSR2, continuing from ${target.isSuspended ? 'SUSPEND' : 'PAUSE'}`);
    target.resume();
  } else {
    log.info('got SIGUSR2, but not paused/suspended');
  }
}
