import assert from 'node:assert/strict';
import { constants } from 'node:crypto';
import { test } from 'node:test';
import { createSecureContext } from 'node:tls';
import { versionOptions } from '../../../src/tls/versions.ts';

const NAMES: Readonly<Record<string, number>> = {
  '1.0': constants.SSL_OP_NO_TLSv1,
  '1.1': constants.SSL_OP_NO_TLSv1_1,
  '1.2': constants.SSL_OP_NO_TLSv1_2,
  '1.3': constants.SSL_OP_NO_TLSv1_3,
};

/** A list, the range that it spans, and the versions that are switched off. */
const lists: readonly (readonly [string, string, string])[] = [
  ['', 'TLSv1.2 TLSv1.3', '1.0 1.1'],
  ['secure', 'TLSv1.2 TLSv1.3', '1.0 1.1'],
  ['default', 'TLSv1.2 TLSv1.3', '1.0 1.1'],
  ['all', 'TLSv1 TLSv1.3', ''],
  ['TLSv1', 'TLSv1 TLSv1.3', ''],
  ['tlsv1.3', 'TLSv1.3 TLSv1.3', '1.0 1.1 1.2'],
  ['tlsv1.1:tlsv1.2', 'TLSv1.1 TLSv1.2', '1.0 1.3'],
  ['tlsv1.0,tlsv1.3', 'TLSv1 TLSv1.3', '1.1 1.2'],
  ['all,!tlsv1.1,!tlsv1.2', 'TLSv1 TLSv1.3', '1.1 1.2'],
  ['!tlsv1.3', 'TLSv1 TLSv1.2', '1.3'],
  ['all, !tlsv1.2', 'TLSv1 TLSv1.3', '1.2'],
];

for (const [list, range, off] of lists) {
  test(`the list "${list}" allows what it names and nothing in between`, () => {
    const options = versionOptions('server_tls_protocols', list);
    assert.equal(`${options.minVersion} ${options.maxVersion}`, range);
    const switchedOff = Object.entries(NAMES).filter(
      ([, bit]) => (options.secureOptions ?? 0) & bit,
    );
    assert.equal(switchedOff.map(([name]) => name).join(' '), off);
    createSecureContext(options);
  });
}

test('a list that allows nothing is refused instead of read as another', () => {
  assert.throws(
    () => versionOptions('client_tls_protocols', 'tlsv1.3,!all'),
    /^TlsSetupError: invalid client_tls_protocols: tlsv1.3,!all\n/,
  );
});
