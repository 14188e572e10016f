/**
 * What a client session talks to when the database asked for is not a server but the pooler itself
 * (the console). The session does the login and the framing; the backend gets whole messages.
 */

/** The session's side, as the backend sees it. After `close` or `fatal` nothing more may be sent. */
export interface LocalPeer {
  /**
   * Sends whole messages; the bytes belong to the peer afterwards. A peer whose client reads slowly
   * stops reading from that client, so that what a backend answers cannot pile up without end.
   */
  send(bytes: Buffer): void;
  /** Closes without a word to the client. */
  close(logReason: string): void;
  /** Sends a FATAL with SQLSTATE 08P01 and closes. */
  fatal(text: string): void;
  /** The text with the session's name before it, for the log. */
  prefixed(text: string): string;
}

/** One logged-in session of the pooler's own database. */
export interface LocalBackend {
  /** ParameterStatus pairs of the welcome, in order. */
  readonly parameters: readonly (readonly [string, string])[];
  /**
   * Takes a whole message. `body` is what follows the length word and is only valid during the call.
   * Answers may come later, but in the order of the messages.
   */
  onMessage(type: number, body: Buffer): void;
  /** The client has gone. Also called after `close` and `fatal`; more than once does no harm. */
  onClose(): void;
}

export interface LocalBackendFactory {
  /**
   * Opens a session for a client that has been authenticated and let in.
   *
   * @param rights 'stats' may only look
   */
  open(peer: LocalPeer, rights: 'admin' | 'stats'): LocalBackend;
}
