/** One thing to say and how far to listen: what the comparison of replies is made of. */
export interface Exchange {
  readonly name: string;
  readonly send: Buffer;
  /** Listens up to the so-manieth message of this type; default: one ReadyForQuery. */
  readonly until?: { readonly type: string; readonly count: number };
}

/** What one connection says, in order. A string is a simple query. */
export interface Script {
  readonly name: string;
  /** It opens transaction blocks over more than one message, which statement pooling refuses. */
  readonly hasBlocks?: true;
  /** Oldest server that knows what is used. */
  readonly since?: number;
  readonly says: readonly (string | Exchange)[];
}

/** Messages that are sent together and answered with `readies` ReadyForQuery. */
export function sent(name: string, messages: readonly Buffer[], readies = 1): Exchange {
  return {
    name,
    send: Buffer.concat(messages),
    until: { type: 'Z', count: readies },
  };
}

/** Messages that are sent together; the answer that is waited for is of `type`. */
export function sentUntil(name: string, type: string, messages: readonly Buffer[]): Exchange {
  return { name, send: Buffer.concat(messages), until: { type, count: 1 } };
}
