import pg from 'pg';
import { type Answers, type ConsoleRow, QUESTIONS } from './readings.ts';

/** How the console is reached; what is not said comes from the environment, as with psql. */
export type ConsolePlace = Pick<pg.ClientConfig, 'host' | 'port' | 'user' | 'connectionString'>;

const CONNECT_MS = 5000;
const QUERY_MS = 5000;
/** A console that does not know a topic; PgBouncer has none of processes. */
const UNKNOWN_TOPIC = /^invalid command/;

/** A connection to the console of pgfleet or PgBouncer. */
export class ConsoleConnection {
  readonly #client: pg.Client;
  /** Why it can be used no more; null: it can. */
  failure: Error | null = null;

  private constructor(client: pg.Client) {
    this.#client = client;
    client.on('error', (error) => {
      this.failure ??= error;
    });
    client.on('end', () => {
      this.failure ??= new Error('the console has closed the connection');
    });
  }

  /** @throws Error of the system, of TLS, or pg's `DatabaseError` when the login is refused */
  static async open(place: ConsolePlace): Promise<ConsoleConnection> {
    const client = new pg.Client({
      database: 'pgbouncer',
      application_name: 'pgfleet top',
      ...place,
      connectionTimeoutMillis: CONNECT_MS,
      query_timeout: QUERY_MS,
    });
    const connection = new ConsoleConnection(client);
    try {
      await client.connect();
    } catch (error) {
      connection.close();
      throw error;
    }
    return connection;
  }

  /** The console's own word for its version. */
  async version(): Promise<string> {
    const [row] = await this.#show('VERSION');
    return String(row?.['version'] ?? '');
  }

  async ask(): Promise<Answers> {
    const answers: Partial<Record<(typeof QUESTIONS)[number], readonly ConsoleRow[]>> = {};
    for (const topic of QUESTIONS) {
      try {
        answers[topic] = await this.#show(topic);
      } catch (error) {
        if (!UNKNOWN_TOPIC.test((error as Error).message)) throw error;
        answers[topic] = [];
      }
    }
    return answers as Answers;
  }

  close(): void {
    this.failure ??= new Error('closed');
    this.#client.end().catch(() => undefined);
  }

  async #show(topic: string): Promise<ConsoleRow[]> {
    const { rows } = await this.#client.query<Record<string, unknown>>(`SHOW ${topic}`);
    return rows.map((row) =>
      Object.fromEntries(
        Object.entries(row).map(([key, value]) => [key, value === null ? null : String(value)]),
      ),
    );
  }
}

/** The login was refused: to try again is of no use. */
export function isRefusal(error: unknown): boolean {
  return error instanceof pg.DatabaseError;
}
