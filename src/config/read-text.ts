import { closeSync, openSync, readSync } from 'node:fs';

/** More than any file of a configuration can sensibly have. */
const MAX_BYTES = 64 * 2 ** 20;
const CHUNK_BYTES = 1 << 16;
/** EFBIG of Linux, as errors of Node's `fs` have it. */
const TOO_LARGE = { code: 'EFBIG', errno: -27 };

/**
 * The text of a file, which may be a pipe too. Throws the system's error, `File too large` for one
 * that does not end in time (`/dev/zero`).
 */
export function readText(path: string): string {
  const fd = openSync(path, 'r');
  try {
    const chunks: Buffer[] = [];
    let size = 0;
    for (;;) {
      const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
      const got = readSync(fd, chunk);
      if (got === 0) return Buffer.concat(chunks, size).toString('utf8');
      size += got;
      if (size > MAX_BYTES) throw Object.assign(new Error('EFBIG: file too large'), TOO_LARGE);
      chunks.push(chunk.subarray(0, got));
    }
  } finally {
    closeSync(fd);
  }
}
