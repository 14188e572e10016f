import net from 'node:net';
import type { StopMode } from '../../src/ipc/control.ts';
import type {
  FromWorker,
  Handoff,
  ReloadStep,
  StartMessage,
  ToWorker,
} from '../../src/ipc/messages.ts';
import { Traffic } from '../../src/metrics/traffic.ts';

/*
 * A worker without a pooler in it: it speaks the launcher's messages and answers its clients. Lines
 * that it knows: `who` (worker number and pid), `state`, `reopened`, `crash`, `hang`; everything else is echoed.
 * ECHO_MODE in the environment: `refuse` to start, `die` while starting, `deaf` to stop messages,
 * `pass` every client of worker 0 to worker 1 unread.
 */

const mode = process.env['ECHO_MODE'] ?? '';
const servers: { kind: 'tcp' | 'unix'; server: net.Server }[] = [];
const clients = new Set<net.Socket>();
let start: StartMessage;
let isEnding = false;
let reopened = 0;

function tell(message: FromWorker): void {
  if (process.connected) process.send?.(message);
}

async function begin(message: StartMessage): Promise<void> {
  start = message;
  if (mode === 'refuse') {
    tell({ kind: 'failed', text: 'the echo worker refuses' });
    process.exit(1);
  }
  if (mode === 'die') process.exit(7);
  for (const { kind, fd, host, port } of message.listeners) {
    const server = net.createServer({ pauseOnConnect: true }, (socket) => accept(socket, kind));
    const address = fd === null ? { host, port, reusePort: true, ipv6Only: true } : { fd };
    const backlog = message.config.settings.listen_backlog;
    await new Promise<void>((resolve) => server.listen({ ...address, backlog }, resolve));
    servers.push({ kind, server });
  }
  tell({ kind: 'ready', incarnation: message.incarnation });
}

function accept(socket: net.Socket, socketKind: 'tcp' | 'unix'): void {
  if (mode === 'pass' && start.workerId === 0) {
    const handoff: Handoff = {
      kind: 'handoff',
      target: 1,
      visited: [],
      received: '',
      socketKind,
      client: null,
    };
    const handle = (socket as unknown as { _handle: net.Socket })._handle;
    process.send?.(handoff, handle, {}, () => socket.destroy());
    return;
  }
  serve(socket);
}

function serve(socket: net.Socket): void {
  clients.add(socket);
  socket.on('error', () => socket.destroy());
  socket.on('close', () => {
    clients.delete(socket);
    endIfEmpty();
  });
  socket.on('data', (bytes) => {
    const word = bytes.toString().trim();
    if (word === 'who') socket.write(`${start.workerId} ${process.pid}\n`);
    else if (word === 'state') socket.write(`${JSON.stringify(start.state)}\n`);
    else if (word === 'reopened') socket.write(`${reopened}\n`);
    else if (word === 'crash') process.exit(3);
    else if (word === 'hang') for (;;);
    else socket.write(bytes);
  });
  socket.resume();
}

function apply(seq: number): void {
  const { incarnation } = start;
  for (const stage of ['applied', 'settled'] as const) {
    tell({ kind: 'control_done', incarnation, seq, stage, isFound: true });
  }
}

function stop(how: StopMode): void {
  if (mode === 'deaf') return;
  isEnding = true;
  for (const { kind, server } of servers) if (kind === 'tcp') server.close();
  if (how !== 'wait_for_clients') for (const client of clients) client.destroy();
  endIfEmpty();
}

function endIfEmpty(): void {
  if (!isEnding || clients.size > 0) return;
  process.send?.({ kind: 'stopped', incarnation: start.incarnation }, () => process.exit(0));
}

function answer(step: ReloadStep, version: number): void {
  tell({ kind: 'reload_answer', incarnation: start.incarnation, version, step, refusal: null });
}

/** Each worker claims ten transactions for each time that it is asked. */
function tellStats(seq: number): void {
  const counters = { ...new Traffic(), transactions: 10 * seq };
  tell({ kind: 'stats', incarnation: start.incarnation, seq, counters });
}

function onReloadStep(step: ReloadStep, version: number): void {
  // A worker opens its log anew when it switches.
  if (step === 'commit') reopened++;
  if (step !== 'abort') answer(step, version);
}

process.on('message', (message: ToWorker, handle: unknown) => {
  if (message.kind === 'start') void begin(message);
  else if (message.kind === 'ping') tell({ kind: 'pong', seq: message.seq, clients: clients.size });
  else if (message.kind === 'reopen_log') reopened++;
  else if (message.kind === 'stats_ask') tellStats(message.seq);
  else if (message.kind === 'control') apply(message.seq);
  else if (message.kind === 'reload_prepare') answer('prepare', message.version);
  else if (message.kind === 'reload_step') onReloadStep(message.step, message.version);
  else if (message.kind === 'stop') stop(message.mode);
  else if (message.kind === 'handoff') {
    serve(new net.Socket({ handle } as net.SocketConstructorOpts));
  }
});
process.on('disconnect', () => {});
tell({ kind: 'hello' });
