/**
 * Frames of the mesh: JSON text in pieces. Layout of a piece:
 *
 *   bytes 0-3  magic `PGFM`; read as the length word of a startup packet it is 1.3 GB, far above
 *              the 10,000 that PostgreSQL allows, so that no PostgreSQL client can be mistaken
 *   byte  4    version
 *   byte  5    1: more pieces of the same text follow; 0: the last one
 *   bytes 6-9  UInt32 number of bytes that follow
 *
 * A request is one piece; an answer may have several.
 */

export const MAGIC = 0x5047464d;
const FRAME_VERSION = 1;
const HEADER_BYTES = 10;
/** Most bytes of one piece, and so of a request. */
export const MAX_FRAME_BYTES = 1 << 20;
/** Most bytes of a whole answer: a listing of 100,000 clients needs about 50 MB. */
export const MAX_ANSWER_BYTES = 128 << 20;

/** `text` in as many pieces as it needs, or null when it is longer than `maxBytes`. */
export function encodeFrames(text: string, maxBytes: number): Buffer | null {
  const body = Buffer.from(text);
  if (body.length > maxBytes) return null;
  const pieces: Buffer[] = [];
  let at = 0;
  do {
    const end = Math.min(at + MAX_FRAME_BYTES, body.length);
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeUInt32BE(MAGIC, 0);
    header[4] = FRAME_VERSION;
    header[5] = end < body.length ? 1 : 0;
    header.writeUInt32BE(end - at, 6);
    pieces.push(header, body.subarray(at, end));
    at = end;
  } while (at < body.length);
  return Buffer.concat(pieces);
}

/** Puts the pieces of one text together, however the stream is cut. */
export class FrameReader {
  /** The text once it is complete. */
  text: string | null = null;
  /** What is wrong with the stream; nothing more is read then. */
  problem: string | null = null;
  readonly #maxBytes: number;
  readonly #maxPieces: number;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  #pieces = 0;
  #bodyLeft = 0;
  #totalBytes = 0;
  #body: Buffer[] = [];

  /** @param maxBytes longest text taken, in bytes; `maxPieces` 1 takes no text in several pieces */
  constructor(maxBytes: number, maxPieces = Number.POSITIVE_INFINITY) {
    this.#maxBytes = maxBytes;
    this.#maxPieces = maxPieces;
  }

  /** True when nothing more will be taken. */
  get isOver(): boolean {
    return this.text !== null || this.problem !== null;
  }

  /** Takes the next bytes, which must stay as they are. Bytes behind the end of the text are ignored. */
  push(chunk: Buffer): void {
    let at = 0;
    while (!this.isOver) {
      if (this.#headerBytes < HEADER_BYTES) {
        if (at === chunk.length) return;
        const taken = chunk.copy(this.#header, this.#headerBytes, at);
        this.#headerBytes += taken;
        at += taken;
        if (this.#headerBytes < HEADER_BYTES) return;
        this.#onHeader();
        if (this.problem !== null) return;
      }
      const size = Math.min(this.#bodyLeft, chunk.length - at);
      if (size > 0) this.#body.push(chunk.subarray(at, at + size));
      at += size;
      this.#bodyLeft -= size;
      if (this.#bodyLeft > 0) return;
      this.#onPieceEnd();
    }
  }

  #onHeader(): void {
    const version = this.#header[4]!;
    const bytes = this.#header.readUInt32BE(6);
    this.#pieces++;
    this.#totalBytes += bytes;
    this.#bodyLeft = bytes;
    if (this.#header.readUInt32BE(0) !== MAGIC) this.problem = 'sent something else than a frame';
    else if (version !== FRAME_VERSION) {
      this.problem = `speaks version ${version} of the mesh, not ${FRAME_VERSION}`;
    } else if (this.#header[5]! > 1) this.problem = 'sent a frame of an unknown kind';
    else if (bytes > MAX_FRAME_BYTES) this.problem = `sent a frame of ${bytes} bytes`;
    else if (this.#totalBytes > this.#maxBytes) this.problem = 'sent more than is allowed';
    else if (this.#header[5] === 1 && (bytes === 0 || this.#pieces === this.#maxPieces)) {
      this.problem = 'sent too many frames';
    }
  }

  #onPieceEnd(): void {
    this.#headerBytes = 0;
    if (this.#header[5] === 1) return;
    this.text = Buffer.concat(this.#body).toString();
    this.#body = [];
  }
}
