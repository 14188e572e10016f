import { ClientStatements } from '../../src/prepared/client-statements.ts';
import { StatementRegistry } from '../../src/prepared/registry.ts';
import { ServerStatements } from '../../src/prepared/server-statements.ts';
import { Outcome, StatementTranslator } from '../../src/prepared/translator.ts';
import { measure, message } from './measure.ts';

/** Translating names of prepared statements, with the statement already on the server. */

const STATEMENTS = 100;
const registry = new StatementRegistry();
const translator = new StatementTranslator(registry, 200);
const client = new ClientStatements(registry);
const server = new ServerStatements(registry, { syncsSent: 1, syncsAnswered: 1 });

/** A query text of `bytes` bytes, a different one for each `id`. */
function text(id: number, bytes: number): string {
  return `select ${id} /* ${'x'.repeat(bytes - 16)} */`;
}

function parse(name: string, query: string): Buffer {
  return message('P', `${name}\0${query}\0\0\0`);
}

const binds: Buffer[] = [];
for (let id = 0; id < STATEMENTS; id++) {
  const name = `stmt_${id}`;
  const bytes = parse(name, text(id, 200));
  translator.onParse(client, server, bytes, 0, bytes.length);
  binds.push(message('B', `\0${name}\0\0\0\0\x01\0\0\0\x0212\0\0`));
}

const one = binds[0]!;
measure('Bind of one statement again and again', 1, () => {
  translator.onBind(client, server, one, 0, one.length);
});
measure(`Bind of ${STATEMENTS} statements in turn`, STATEMENTS, () => {
  for (let i = 0; i < STATEMENTS; i++) {
    const bytes = binds[i]!;
    translator.onBind(client, server, bytes, 0, bytes.length);
  }
});

const describe = message('D', 'Sstmt_0\0');
measure('Describe of one statement', 1, () => {
  translator.onDescribe(client, server, describe, 0, describe.length);
});

for (const bytes of [100, 1000, 10_000]) {
  const first = parse('kept', text(0, bytes));
  translator.onParse(client, server, first, 0, first.length);
  const again = parse('again', text(0, bytes));
  const close = message('C', 'Sagain\0');
  measure(`Parse of a known text of ${bytes} bytes, and its Close`, 2, () => {
    translator.onParse(client, server, again, 0, again.length);
    translator.onClose(client, close, 0, close.length);
  });
  client.delete('kept');
}
if (translator.last.outcome === Outcome.refused) throw new Error(translator.last.text);
