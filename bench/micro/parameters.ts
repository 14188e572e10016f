import { settingStatements, TrackedNames } from '../../src/server/parameters.ts';
import { measure } from './measure.ts';

/** Comparing a client's parameters with its next server's, which each link does; nothing differs. */

const names = new TrackedNames(['IntervalStyle']);
const VALUES = [
  'ISO, MDY',
  'UTF8',
  'Europe/Berlin',
  'on',
  'orders',
  'off',
  'postgres',
  '"$user", public',
  '4096',
  'app',
];
/** As read from a socket: a string of its own each time. */
const read = () => VALUES.map((value) => Buffer.from(value).toString());

for (const isShared of [true, false]) {
  const values = () => (isShared ? read().map((value) => names.shared(value)) : read());
  const servers = Array.from({ length: 20 }, () => {
    const own = values();
    return { own, tracked: [...own], setByQuery: new Set<number>() };
  });
  const clients = Array.from({ length: 50 }, () =>
    values().map((value, i) => (names.isKept[i] ? value : null)),
  );
  let differing = 0;
  measure(`a link, equal values ${isShared ? 'shared' : 'apart'}`, 1000, () => {
    for (const server of servers) {
      for (const client of clients) {
        if (settingStatements(names, client, server) !== '') differing++;
      }
    }
  });
  if (differing > 0) throw new Error(`${differing} links had statements`);
}
