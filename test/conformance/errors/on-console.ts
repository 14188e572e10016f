import assert from 'node:assert/strict';
import { message, query } from '../../support/messages.ts';
import { fatal, lines, linesUntilClose, login } from '../support.ts';
import type { Provocation, Provocations } from './provocations.ts';

const ADMIN = { user: 'postgres', database: 'pgbouncer' };

/** A console command that is answered with an ERROR. */
const answering = (
  text: string,
  sql: string,
  said: string = text,
  user = 'postgres',
): Provocation => ({
  text,
  check: async (pooler, t) => {
    const client = await login(t, pooler, { user, database: 'pgbouncer' });
    assert.equal(lines(await client.query(sql)), `ERROR 08P01 ${said} Z:I`);
    await client.end();
  },
});

const unsupported = 'ERROR 08P01 unsupported packet type for admin console: 70 Z:I';

const CONSOLE: Provocations = {
  title: 'on the console',
  options: ({ postgres }) => ({ postgres, settings: { stats_users: 'app' }, logs: [/./] }),
  cases: [
    answering(
      "invalid command '%s', use SHOW HELP;",
      'SHOW NOTHING',
      "invalid command 'SHOW NOTHING', use SHOW HELP;",
    ),
    answering('bad arguments', `SHOW ${'x'.repeat(70)}`),
    answering('admin access needed', 'RELOAD', undefined, 'app'),
    ...['unsupported packet type for admin console: %d', 'bad packet'].map(
      (text): Provocation => ({
        text,
        // 1.18 closes with the first of the two only.
        check: async (pooler, t) => {
          const client = await login(t, pooler, ADMIN);
          client.send(message('F', [Buffer.alloc(8)]));
          assert.equal(await linesUntilClose(client), `${unsupported} ${fatal('bad packet')}`);
        },
      }),
    ),
    {
      text: 'incomplete query',
      check: async (pooler, t) => {
        const client = await login(t, pooler, ADMIN);
        client.send(message('Q', [query('SHOW HELP').subarray(5, -1)]));
        assert.equal(await linesUntilClose(client), fatal('incomplete query'));
      },
    },
  ],
};

export const ON_THE_CONSOLE: readonly Provocations[] = [CONSOLE];
