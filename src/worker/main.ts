import { type Handoff, toWorkerSchema } from '../ipc/messages.ts';
import { log } from '../log/logger.ts';
import { WorkerReload } from './reload.ts';
import { Worker } from './worker.ts';

/**
 * The worker's program: says hello, gets its `start` from the launcher and runs until told to stop.
 * When the launcher dies it goes on serving; every send to it is guarded.
 */

let worker: Worker | null = null;
let reload: WorkerReload | null = null;
let incarnation = 0;

function send(message: object, handle?: object, onDone?: (error: Error | null) => void): boolean {
  if (!process.connected || process.send === undefined) return false;
  const done = onDone ?? (() => {});
  process.send(message, handle as never, {}, done);
  return true;
}

function sendHandoff(message: Handoff, handle: object, onFailed: () => void): boolean {
  return send(message, handle, (error) => {
    if (error !== null) onFailed();
    // The launcher has its own copy of the descriptor now.
    (handle as { close(): void }).close();
  });
}

async function start(message: unknown): Promise<void> {
  const parsed = toWorkerSchema.parse(message);
  if (parsed.kind !== 'start' || worker !== null) return;
  incarnation = parsed.incarnation;
  try {
    log.worker = parsed.workerId;
    log.configure(parsed.log);
    worker = new Worker(parsed, { send, sendHandoff });
    reload = new WorkerReload(worker, incarnation, (answer) => void send(answer));
    await worker.run();
    send({ kind: 'ready', incarnation });
  } catch (error) {
    send({ kind: 'failed', text: (error as Error).message }, undefined, () => process.exit(1));
  }
}

function onMessage(raw: unknown, handle: unknown): void {
  const { success, data: message } = toWorkerSchema.safeParse(raw);
  if (!success) {
    log.error('a message from the launcher is not understood');
    return;
  }
  switch (message.kind) {
    case 'start':
      void start(message);
      break;
    case 'ping':
      send({ kind: 'pong', seq: message.seq, clients: worker?.clients ?? 0 });
      break;
    case 'stats_ask':
      if (worker !== null)
        send({ kind: 'stats', incarnation, seq: message.seq, counters: worker.counters });
      break;
    case 'control':
      worker?.control(message.seq, message.action);
      break;
    case 'control_forget':
      worker?.forgetControl(message.seq);
      break;
    case 'control_answer':
      worker?.port.onAnswer(message.id, message.outcome);
      break;
    case 'reopen_log':
      log.reopen();
      break;
    case 'reload_prepare':
      reload?.prepare(message);
      break;
    case 'reload_step':
      reload?.step(message.version, message.step);
      break;
    case 'stop':
      worker?.stop(message.mode, () => {
        send({ kind: 'stopped', incarnation }, undefined, () => process.exit(0));
        if (!process.connected) process.exit(0);
      });
      break;
    case 'handoff':
      if (typeof handle === 'object' && handle !== null) worker?.takeHandoff(message, handle);
      break;
    default:
      message satisfies never;
  }
}

process.on('message', onMessage);
process.on('disconnect', () => worker?.onLauncherGone());
// Node would open its inspector.
process.on('SIGUSR1', () => {});
process.on('uncaughtException', (error) => {
  log.fatal(`uncaught: ${error.stack ?? error.message}`);
  process.exit(1);
});
send({ kind: 'hello' });
