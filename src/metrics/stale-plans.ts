/**
 * Prepared statements of one database that a server refused because their result had changed since
 * they were prepared ("cached plan must not change result type"), since the process started.
 */
export class StalePlans {
  /** All of them. */
  refused = 0;
  /** Those of which the client heard nothing, because all was prepared anew and run again. */
  hidden = 0;
}
