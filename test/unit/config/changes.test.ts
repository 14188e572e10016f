import assert from 'node:assert/strict';
import { test } from 'node:test';
import { changeLines } from '../../../src/config/changes.ts';
import type { Config } from '../../../src/config/config.ts';
import { loadConfig } from '../../../src/config/load.ts';

function config(text: string, users: string | null = null): Config {
  const { config } = loadConfig('f', {
    readFile: (path) => {
      if (path !== 'users') return text;
      if (users === null) throw Object.assign(new Error('gone'), { code: 'ENOENT' });
      return users;
    },
  });
  assert.ok(config);
  return config;
}

const lines = (old: string, next: string) => changeLines(config(old), config(next));

test('nothing differs between a file and itself', () => {
  const text = '[databases]\na = host=h\n[pgbouncer]\nauth_type = trust\n';
  assert.deepEqual(lines(text, text), []);
});

for (const [name, old, next, expected] of [
  [
    'a setting shows old and new value, as SHOW CONFIG writes them',
    '[pgbouncer]\n',
    '[pgbouncer]\ndefault_pool_size = 30\nlog_stats = 0\nauth_user = joe\nadmin_users = a b\n',
    [
      '[pgbouncer] admin_users: "" -> a b',
      '[pgbouncer] auth_user: (not set) -> joe',
      '[pgbouncer] default_pool_size: 20 -> 30',
      '[pgbouncer] log_stats: 1 -> 0',
    ],
  ],
  [
    'what only a restart changes says so',
    '[pgbouncer]\nlisten_port = 7000\n[fleet]\nsize = 2\n',
    '[pgbouncer]\nlisten_port = 7001\n[fleet]\nsize = 3\n',
    [
      '[pgbouncer] listen_port: 7000 -> 7001 (needs a restart)',
      '[fleet] size: 2 -> 3 (needs a restart)',
    ],
  ],
  [
    'a password is never shown, neither the old nor the new one',
    '[databases]\na = host=h password=old1\n[pgbouncer]\n',
    '[databases]\na = host=h password=new2\n[pgbouncer]\n',
    ['[databases] a: password: [redacted] -> [redacted]'],
  ],
  [
    'nor the one of an LDAP search',
    '[pgbouncer]\nauth_ldap_options = ldapserver=a ldapbasedn=o ldapbindpasswd=old1\n',
    '[pgbouncer]\nauth_ldap_options = ldapserver=b ldapbasedn=o ldapbindpasswd="new 2"\n',
    [
      '[pgbouncer] auth_ldap_options: ldapserver=a ldapbasedn=o ldapbindpasswd=[redacted] -> ' +
        'ldapserver=b ldapbasedn=o ldapbindpasswd=[redacted]',
    ],
  ],
  [
    'databases come, go and change, and a change of place replaces connections',
    '[databases]\ngone = host=h\nmoved = host=h\nsized = host=h\n[pgbouncer]\n',
    '[databases]\n* = host=h\nmoved = host=h,i\nsized = host=h pool_size=3\n[pgbouncer]\n',
    [
      '[databases] gone: removed',
      '[databases] moved: hosts: h -> h,i (its connections are replaced as they become free)',
      '[databases] sized: pool_size: (not set) -> 3',
      '[databases] *: added',
    ],
  ],
  [
    'users and peers are entries too',
    '[users]\nu = pool_size=1\n[peers]\n1 = host=a\n[pgbouncer]\n',
    '[users]\nu = pool_size=2\n[peers]\n2 = host=a\n[pgbouncer]\n',
    ['[users] u: pool_size: 1 -> 2', '[peers] 1: removed', '[peers] 2: added'],
  ],
] as const) {
  test(name, () => {
    assert.deepEqual(lines(old, next), expected);
  });
}

test('an auth_file with another content is told of, without what is in it', () => {
  const text = '[pgbouncer]\nauth_file = users\n';
  const [old, next] = [config(text, '"a" "old1"\n'), config(text, '"a" "new2"\n')];
  assert.deepEqual(changeLines(old, next), ['auth_file: content has changed']);
});
