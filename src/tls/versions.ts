import { constants } from 'node:crypto';
import type { SecureContextOptions, SecureVersion } from 'node:tls';
import { allowedVersions } from '../config/tls-values.ts';
import { TlsSetupError } from './setup-error.ts';

const IN_ORDER: readonly SecureVersion[] = ['TLSv1', 'TLSv1.1', 'TLSv1.2', 'TLSv1.3'];
const WITHOUT: Readonly<Record<SecureVersion, number>> = {
  TLSv1: constants.SSL_OP_NO_TLSv1,
  'TLSv1.1': constants.SSL_OP_NO_TLSv1_1,
  'TLSv1.2': constants.SSL_OP_NO_TLSv1_2,
  'TLSv1.3': constants.SSL_OP_NO_TLSv1_3,
};

type VersionOptions = Required<
  Pick<SecureContextOptions, 'minVersion' | 'maxVersion' | 'secureOptions'>
>;

/**
 * The TLS versions of a protocol list, and no other. Node takes a range, so a version that the list
 * leaves out in between is switched off by itself.
 * @throws TlsSetupError when the list allows none
 */
export function versionOptions(
  key: 'server_tls_protocols' | 'client_tls_protocols',
  list: string,
): VersionOptions {
  const allowed = allowedVersions(list);
  const [minVersion] = allowed;
  const maxVersion = allowed.at(-1);
  if (minVersion === undefined || maxVersion === undefined) {
    throw new TlsSetupError(`invalid ${key}: ${list}`);
  }
  const left = IN_ORDER.filter((version) => !allowed.includes(version));
  const secureOptions = left.reduce((options, version) => options | WITHOUT[version], 0);
  return { minVersion, maxVersion, secureOptions };
}
