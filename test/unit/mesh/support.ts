import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { Mesh, type MeshOptions } from '../../../src/mesh/mesh.ts';

/** A directory that goes away with the test. */
export async function temporaryDir(t: TestContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'pgfleet-mesh-'));
  t.after(() => rm(dir, { recursive: true, force: true }));
  return dir;
}

/** A listening worker `workerId` of a fleet of `size`. */
export async function startMesh(
  t: TestContext,
  runtimeDir: string,
  workerId: number,
  size: number,
  handlers: Partial<MeshOptions> = {},
): Promise<Mesh> {
  const mesh = new Mesh({
    runtimeDir,
    workerId,
    size,
    onCancel: (_packet, done) => {
      done('');
      return () => {};
    },
    onRequest: (request) => request,
    ...handlers,
  });
  await mesh.listen();
  t.after(() => mesh.close());
  return mesh;
}

/** Connects to a worker's socket as a stranger would. */
export function dial(t: TestContext, runtimeDir: string, workerId: number): Promise<Socket> {
  const socket = connect(join(runtimeDir, `worker-${workerId}.sock`));
  t.after(() => socket.destroy());
  return new Promise((resolve, reject) => {
    socket.once('connect', () => resolve(socket));
    socket.once('error', reject);
  });
}

/** All bytes until the other end closes. */
export function readToEnd(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  socket.on('error', () => {});
  return new Promise((resolve) => socket.on('close', () => resolve(Buffer.concat(chunks))));
}

/** The turn of the event loop after the bytes written so far have been sent. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
