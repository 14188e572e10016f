import assert from 'node:assert/strict';
import { test } from 'node:test';
import { handshakeErrorText, isTlsError } from '../../../src/tls/handshake-error.ts';

const coded = (message: string, fields: object): Error => Object.assign(new Error(message), fields);

const ALERT =
  '40E7C2F8FF7F0000:error:0A000410:SSL routines:ssl3_read_bytes:ssl/tls alert handshake failure:../deps/openssl/ssl/record/rec_layer_s3.c:916:SSL alert number 40\n';

test('a failed handshake is told in PgBouncer’s words', () => {
  assert.equal(
    handshakeErrorText(coded(ALERT, { code: 'ERR_SSL_SSLV3_ALERT_HANDSHAKE_FAILURE' })),
    'handshake failed: error:0A000410:SSL routines::ssl/tls alert handshake failure',
  );
  assert.equal(
    handshakeErrorText(coded('self-signed certificate', { code: 'DEPTH_ZERO_SELF_SIGNED_CERT' })),
    'handshake failed: error:0A000086:SSL routines::certificate verify failed (self-signed certificate)',
  );
  assert.equal(handshakeErrorText(null), 'handshake failed: unexpected EOF');
  assert.equal(
    handshakeErrorText(coded('Client network socket disconnected', { code: 'ECONNRESET' })),
    'handshake failed: unexpected EOF',
  );
  assert.equal(
    handshakeErrorText(coded('read ECONNRESET', { code: 'ECONNRESET', syscall: 'read' })),
    'handshake failed: read ECONNRESET',
  );
});

test('errors of TLS are told from errors of the connection under it', () => {
  assert.equal(isTlsError(new Error(ALERT)), true);
  assert.equal(isTlsError(coded('read ECONNRESET', { code: 'ECONNRESET' })), false);
  assert.equal(isTlsError(null), false);
});
