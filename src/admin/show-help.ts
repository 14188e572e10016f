/** Detail of the notice that answers SHOW HELP: PgBouncer's, and our own topics among its. */
export const HELP_DETAIL = [
  'SHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION',
  'SHOW PEERS|PEER_POOLS',
  'SHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE',
  'SHOW DNS_HOSTS|DNS_ZONES',
  'SHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS',
  'SHOW FLEET|SESSION_LEAKS|STALE_PLANS',
  'SHOW <topic> BY PROCESS',
  'SET key = arg',
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
