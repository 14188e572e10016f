import { lstat } from 'node:fs/promises';
import { userInfo } from 'node:os';

/** Mode of a Unix socket that its owner alone may connect to; the owner alone may change it. */
const OWNER_ONLY = 0o600;

/**
 * Tells whose processes can have connected to the pooler's Unix socket. Node does not show the
 * credentials of a socket's peer (SO_PEERCRED), so an account is only known where nobody else's
 * process may connect: the socket's own inode belongs to the pooler's account and has mode 0600.
 * The mode of a folder proves nothing, since a bind mount goes round it. Root is nobody else: it can
 * become that account.
 */
export class UnixOwner {
  readonly #path: string | null;
  readonly #mode: number;

  /**
   * @param path the socket; null: there is none, or it is abstract and everybody may connect
   * @param mode `unix_socket_mode`: a socket that was wider before may have clients from that time
   */
  constructor(path: string | null, mode: number) {
    this.#path = path;
    this.#mode = mode;
  }

  /** The account that every client of the socket is of; null: it cannot be known. Never rejects. */
  async name(): Promise<string | null> {
    if (!(await this.isKnown())) return null;
    try {
      return userInfo().username;
    } catch {
      // The account has no name on this system.
      return null;
    }
  }

  /** Whether every client of the socket is of the pooler's own account. Never rejects. */
  async isKnown(): Promise<boolean> {
    if (this.#path === null || this.#mode !== OWNER_ONLY) return false;
    try {
      const found = await lstat(this.#path);
      const isOwn = found.isSocket() && found.uid === process.getuid!();
      return isOwn && (found.mode & 0o7777) === OWNER_ONLY;
    } catch {
      return false;
    }
  }
}
