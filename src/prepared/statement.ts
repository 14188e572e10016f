/**
 * One prepared statement as the pooler knows it: a query text with its parameter types. All clients
 * that prepare the same share it, and on a server it goes by a name of the pooler's own.
 */
export class PreparedStatement {
  /** Counts from 1 in each process; never given twice. */
  readonly id: number;
  /** `PGBOUNCER_<id>`. The name is unique on a server connection, which belongs to one process. */
  readonly serverName: string;
  /** `serverName` with its NUL. */
  readonly serverNameBytes: Buffer;
  /**
   * What follows the name in Parse (query text NUL, Int16 count, OIDs), one character a byte
   * (latin1). It is the only copy: a string serves as a key and is written out as fast as a Buffer.
   */
  readonly key: string;
  /**
   * Goes up when a server says that the result has changed since it was prepared there: what was
   * prepared under an older revision is not to be relied on, on any server.
   */
  revision = 0;
  /** How many clients and servers know it; only the registry writes this. */
  refs = 0;

  constructor(id: number, key: string) {
    this.id = id;
    this.serverName = `PGBOUNCER_${id}`;
    this.serverNameBytes = Buffer.from(`${this.serverName}\0`, 'latin1');
    this.key = key;
  }

  /** What follows the name in Parse, in memory of its own. */
  get parseTail(): Buffer {
    return Buffer.from(this.key, 'latin1');
  }
}

/** A Parse or Close on a server that came to nothing: rejected, or skipped after an error. */
export interface FailedStatement {
  /** Type byte of Parse or Close. */
  readonly kind: number;
  readonly statement: PreparedStatement;
  /**
   * The client's name for it. Null when the request was the pooler's own, and when a later one about
   * the same name is in flight: then the name is as that one left it.
   */
  readonly name: string | null;
  /** True when it was kept from the server, the pooler giving the reply. */
  readonly isFake: boolean;
  /** How many Syncs were sent before it. */
  readonly segment: number;
}
