/** Client messages as drivers send them, and the little a table needs to know of a server. */

/** One message: type letter, then strings (NUL added by the caller where due) and bytes. */
export function message(type: string, ...parts: (string | Buffer)[]): Buffer {
  const body = Buffer.concat(
    parts.map((part) => (typeof part === 'string' ? Buffer.from(part, 'latin1') : part)),
  );
  const header = Buffer.alloc(5);
  header.write(type, 'latin1');
  header.writeInt32BE(4 + body.length, 1);
  return Buffer.concat([header, body]);
}

/** Int16 count and Int32 OIDs, as at the end of Parse. */
export function oids(...types: number[]): Buffer {
  const bytes = Buffer.alloc(2 + 4 * types.length);
  bytes.writeInt16BE(types.length);
  for (const [at, type] of types.entries()) bytes.writeInt32BE(type, 2 + 4 * at);
  return bytes;
}

export function parse(name: string, query: string, ...types: number[]): Buffer {
  return message('P', `${name}\0${query}\0`, oids(...types));
}

/** A Bind with one text parameter, `value`. */
export function bind(portal: string, name: string, value = 'v'): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value.length);
  return message('B', `${portal}\0${name}\0`, '\0\0\0\x01', bytes, value, '\0\0');
}

export function describe(name: string): Buffer {
  return message('D', `S${name}\0`);
}

export function close(name: string): Buffer {
  return message('C', `S${name}\0`);
}

/** A server's Syncs, moved by hand. */
export class Progress {
  syncsSent = 0;
  syncsAnswered = 0;
}
