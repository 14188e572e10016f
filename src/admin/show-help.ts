/**
 * Detail of the notice that answers SHOW HELP, in PgBouncer's layout. It names what there is: PgBouncer's
 * own has other topics besides, and SET.
 */
export const HELP_DETAIL = [
  'SHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION',
  'SHOW PEERS',
  'SHOW LISTS|STATE',
  'SHOW DNS_HOSTS|DNS_ZONES',
  'SHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS',
  'SHOW SESSION_LEAKS|STALE_PLANS',
  'SHOW <topic> BY PROCESS',
  'RELOAD',
  'PAUSE [<db>]',
  'RESUME [<db>]',
  'DISABLE <db>',
  'ENABLE <db>',
  'RECONNECT [<db>]',
  'KILL [<db>]',
  'KILL_CLIENT <client_id>',
  'SUSPEND',
  'SHUTDOWN',
  'SHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS',
  'WAIT_CLOSE [<db>]',
]
  .map((line) => `\n\t${line}`)
  .join('');
