/**
 * A TLS setting or a file that one names cannot be used. The message is PgBouncer's two lines: why,
 * and that it is so.
 */
export class TlsSetupError extends Error {
  /** Why: names the setting, and the file if it is about one. */
  readonly why: string;

  constructor(why: string, options?: ErrorOptions) {
    const isAboutValue = why.startsWith('invalid ');
    super(`${isAboutValue ? '' : 'TLS setup failed: '}${why}\nTLS setup failed`, options);
    this.name = 'TlsSetupError';
    this.why = why;
  }
}
