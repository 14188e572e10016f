import { readFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { connect as connectTls, createSecureContext, TLSSocket } from 'node:tls';
import { freePort } from './ports.ts';

const SSL_REQUEST = Buffer.from('0000000804d2162f', 'hex');

/** PEM files. */
interface CertificateFiles {
  readonly cert: string;
  readonly key: string;
}

export interface TlsProxyOptions {
  /** Port of the server behind it. */
  readonly port: number;
  /** Its own; null: the bytes of a connection are passed on as they come. */
  readonly certificate: CertificateFiles | null;
}

/**
 * A proxy that sees what a pooler says to a server: it ends the TLS of one side and begins another
 * on the other, or only looks at the first bytes of each connection.
 */
export class TlsProxy {
  readonly host = '127.0.0.1';
  /** First bytes of each connection, hexadecimal. */
  readonly firstBytes: string[] = [];
  /** Server names of the handshakes; null: none was said. */
  readonly names: (string | null)[] = [];
  /** What connections to come are shown. */
  certificate: CertificateFiles | null;
  readonly #port: number;
  /** One for each loopback address, on the same port: `localhost` may be either. */
  readonly #servers: readonly Server[];
  readonly #sockets = new Set<Socket>();

  constructor(options: TlsProxyOptions) {
    this.#port = options.port;
    this.certificate = options.certificate;
    this.#servers = [0, 1].map(() =>
      createServer({ noDelay: true }, (client) => this.#onClient(client)),
    );
  }

  get port(): number {
    const address = this.#servers[0]!.address();
    if (address === null || typeof address === 'string') throw new Error('not listening');
    return address.port;
  }

  async listen(): Promise<void> {
    const port = await freePort();
    for (const [index, server] of this.#servers.entries()) {
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen(port, index === 0 ? this.host : '::1', resolve);
      });
    }
  }

  async stop(): Promise<void> {
    const closed = this.#servers.map(
      (server) =>
        new Promise<void>((resolve) => {
          server.close(() => resolve());
        }),
    );
    for (const socket of this.#sockets) socket.destroy();
    await Promise.all(closed);
  }

  #onClient(client: Socket): void {
    this.#keep(client);
    client.once('data', (first: Buffer) => {
      this.firstBytes.push(first.toString('hex', 0, 8));
      const { certificate } = this;
      if (certificate === null) {
        const server = this.#keep(connect(this.#port, this.host));
        server.write(first);
        join(client, server);
      } else if (first.equals(SSL_REQUEST)) {
        this.#endTls(client, certificate);
      } else {
        client.destroy();
      }
    });
  }

  #endTls(client: Socket, files: CertificateFiles): void {
    const secureContext = createSecureContext({
      cert: readFileSync(files.cert),
      key: readFileSync(files.key),
    });
    client.write('S');
    const secure = new TLSSocket(client, { isServer: true, secureContext });
    this.#keep(secure);
    secure.once('secure', () => {
      const { servername } = secure as { servername?: string | false | null };
      this.names.push(servername === undefined || servername === false ? null : servername);
      const server = this.#keep(connect(this.#port, this.host));
      server.write(SSL_REQUEST);
      server.once('data', () => {
        const onward = connectTls({ socket: server, rejectUnauthorized: false });
        this.#keep(onward);
        join(secure, onward);
      });
    });
  }

  #keep(socket: Socket): Socket {
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('close', () => this.#sockets.delete(socket));
    return socket;
  }
}

/** Starts a proxy; end it with `stop`. */
export async function startTlsProxy(options: TlsProxyOptions): Promise<TlsProxy> {
  const proxy = new TlsProxy(options);
  await proxy.listen();
  return proxy;
}

function join(one: Socket, other: Socket): void {
  one.pipe(other);
  other.pipe(one);
  one.once('close', () => other.destroy());
  other.once('close', () => one.destroy());
}

/** A server that answers whatever comes first with `answer`, and then may close. Returns how to end it. */
export async function startAnswering(
  answer: string,
  closes: boolean,
): Promise<{ readonly port: number; stop(): Promise<void> }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('data', () => {
      if (closes) socket.end(answer);
      else socket.write(answer);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('not listening');
  return {
    port: address.port,
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
      });
    },
  };
}
