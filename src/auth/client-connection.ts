/** How a client has come in, as far as it matters to who it may be. */
export interface ClientConnection {
  readonly isUnix: boolean;
  /** IP address in its usual text form; `unix` for a Unix socket. */
  readonly address: string;
  /** null: the connection is not encrypted. */
  readonly tls: TlsFacts | null;
  /** Account of this system whose process the client is; null: that is not known. */
  readonly osUser: string | null;
}

/** What is known of a finished TLS handshake with a client. */
export interface TlsFacts {
  /** As OpenSSL names it, `TLSv1.3`. */
  readonly version: string;
  /** As OpenSSL names it, `TLS_AES_256_GCM_SHA384`. */
  readonly cipher: string;
  /** The client's certificate (DER), which the CA has signed; null: it sent none. */
  readonly certificate: Buffer | null;
  /**
   * Channel binding data of type `tls-server-end-point`: the hash of the certificate that this
   * pooler sent (RFC 5929, section 4); null: that certificate has no such hash.
   */
  readonly endPoint: Buffer | null;
}
