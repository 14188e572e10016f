/**
 * Counters of one database, as PgBouncer's SHOW STATS_TOTALS counts them: plain numbers that the
 * data path bumps in place. Times are microseconds, sizes bytes, all since the process started.
 */
export class Traffic {
  serverAssignments = 0;
  transactions = 0;
  queries = 0;
  bytesReceived = 0;
  bytesSent = 0;
  transactionUs = 0;
  queryUs = 0;
  waitUs = 0;
  clientParses = 0;
  serverParses = 0;
  binds = 0;
  clientLogins = 0;
}
