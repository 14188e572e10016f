/**
 * Every text with which PgBouncer ends a connection or answers a console command, and who shows that
 * it comes. `error-table.test.ts` checks that none is left out. `%s` and its like stand for a part
 * that varies.
 */

/** Why a text is not provoked at all. */
export type Exception =
  /** Other login methods, and TLS on either side. */
  | 'authentication and TLS'
  | 'PAM'
  | 'failed allocations'
  /** A state or a failed write that only PgBouncer's own code can be in. */
  | "PgBouncer's internals"
  /** The takeover of sockets by another process (`-R`), in place of which a fleet is upgraded. */
  | 'online takeover'
  /** Settings are not changed from the console yet. */
  | 'SET'
  /** pgfleet does what PgBouncer refuses. */
  | 'improvement';

export type Proof =
  /** A case of the test itself. */
  | { readonly kind: 'here' }
  /** A test of this name, in a file that holds the text too. */
  | { readonly kind: 'test'; readonly name: string }
  | { readonly kind: 'never'; readonly why: Exception };

export interface ErrorText {
  readonly text: string;
  /** LOG: closed without telling the peer, or a server that no client has. */
  readonly severity: 'FATAL' | 'ERROR' | 'LOG';
  readonly sqlstate: string;
  readonly proof: Proof;
  /** What of the text stands in one piece in the sources, where that is not all of it. */
  readonly source?: string;
}

const here: Proof = { kind: 'here' };
const test = (name: string): Proof => ({ kind: 'test', name });
const never = (why: Exception): Proof => ({ kind: 'never', why });
const refused = test(
  'a command that names no database, the console, or what it takes no notice of is refused',
);
const closedForQuery = test('why a server of the auth pool is closed stands in the log');
const later = never('authentication and TLS');
const internals = never("PgBouncer's internals");
const memory = never('failed allocations');

const row =
  (severity: ErrorText['severity'], sqlstate: string) =>
  (text: string, proof: Proof, source?: string): ErrorText => ({
    text,
    severity,
    sqlstate,
    proof,
    ...(source === undefined ? {} : { source }),
  });
const fatal = row('FATAL', '08P01');
const error = row('ERROR', '08P01');
const logged = row('LOG', '');

const AT_LOGIN: readonly ErrorText[] = [
  fatal("bad packet header: '%s'", here),
  fatal('old V2 protocol not supported', here),
  fatal('SSL required', later),
  fatal('received unencrypted data after SSL request', here, 'received unencrypted data after '),
  fatal(
    'received unencrypted data after GSSAPI encryption request',
    here,
    'received unencrypted data after ',
  ),
  fatal('client re-sent startup pkt', here),
  fatal('client password pkt before startup packet', here),
  fatal('unsupported startup parameter: %s', here),
  fatal('unsupported startup parameter in options: %s', here),
  fatal(
    "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed",
    here,
  ),
  fatal('invalid startup packet layout: expected terminator as last byte', here),
  fatal('no username supplied', here),
  fatal('username too long', here),
  fatal('password too long', never('online takeover')),
  fatal('no more connections allowed (max_client_conn)', here),
  fatal(
    'client connections exceeded (max_db_client_connections)',
    here,
    'client connections exceeded (',
  ),
  fatal(
    'client connections exceeded (max_user_client_connections)',
    here,
    'client connections exceeded (',
  ),
  fatal('no such database: %s', here),
  fatal(
    'database "%s" is disabled',
    test('DISABLE refuses whoever logs in to the database, after the password, until ENABLE'),
  ),
  fatal(
    'authentication database "%s" is disabled',
    test('nobody is looked up in a disabled database'),
  ),
  fatal(
    'pooler is shutting down',
    test('SIGTERM waits for the clients, who are served until they leave'),
  ),
  fatal('no such user', test('a name that no role has fails like a wrong password')),
  fatal('password authentication failed', here),
  fatal('SASL authentication failed', here),
  fatal('client selected an invalid SASL authentication mechanism', here),
  fatal('empty password returned by client', here),
  fatal('"trust" authentication failed', here),
  fatal('certificate authentication failed', later),
  fatal('unix socket login rejected', later),
  fatal('login rejected', later),
  fatal('no authentication method is found', later),
  fatal(
    'LDAP authentication failed',
    test('a password that LDAP finds right lets a client in, and the pooler into the server'),
  ),
  fatal('PAM authentication failed', never('PAM')),
  fatal(
    'auth_ldap_options is null',
    test('without options nobody comes in, and the start says so'),
  ),
  fatal('ldap is not supported by this build', internals),
  fatal('not allowed', here),
  fatal('bouncer config error', here),
  fatal('bouncer resources exhaustion', memory),
  fatal('no memory for pool', memory),
  fatal('no memory for authentication pool', memory),
  fatal('out of memory', memory),
  fatal('pause failed', internals),
  fatal('failed to prepare welcome message', memory),
  fatal('failed to send welcome message', internals),
  fatal('client_login_timeout', here),
  fatal('client_login_timeout (server down)', here),
];

const IN_THE_QUEUE: readonly ErrorText[] = [
  fatal('query_wait_timeout', here),
  fatal('query_timeout', here),
  fatal(
    'server shutting down',
    test('SIGINT lets transactions end, and refuses clients that wait or come to wait'),
  ),
  fatal(
    'server login has been failing, cached error: %s (server_login_retry)',
    test('a login that fails is tried again after a while, its reason told to who comes meanwhile'),
  ),
  fatal('server login failed: wrong password type', here),
  fatal(
    'server login failed: failed to verify server signature',
    here,
    'failed to verify server signature',
  ),
  fatal('server login failed: invalid server signature', here, 'invalid server signature'),
  fatal(
    "server login failed: none of the server's SASL authentication mechanisms are supported",
    here,
    "none of the server's SASL authentication mechanisms are supported",
  ),
];

const IN_SESSION: readonly ErrorText[] = [
  fatal('unknown pkt', here),
  fatal('PQexec disallowed', test('disable_pqexec ends who sends a simple query, and nobody else')),
  fatal('failed to parse packet', test('a Parse without the end of its name')),
  fatal('broken Parse packet', test('a Parse without a text')),
  // A Bind of which both names can be read is passed on, whatever the rest.
  fatal('broken Bind packet', internals),
  fatal('broken Describe packet', test('with something behind its end disconnects')),
  fatal('broken Close packet', test('with something behind its end disconnects')),
  fatal('prepared statement name is already in use', here),
  fatal('prepared statement did not exist', here),
  fatal(
    'transaction blocks not allowed in statement pooling mode',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the name as the file spells it
    test('a transaction block that ${name} leaves open ends server and client'),
  ),
  fatal('invalid server parameter', here),
  fatal('client_idle_timeout', here),
  fatal('query timeout', here),
  fatal('idle transaction timeout', here),
  fatal('transaction timeout', here),
  fatal(
    'suspend_timeout',
    test(
      'a client in the middle of a message holds up SUSPEND for suspend_timeout, then is closed',
    ),
  ),
  fatal('server conn crashed?', here),
  fatal('server connection closed', here),
  fatal(
    'database configuration changed',
    test('with server_fast_close it is closed between two transactions, and its client with it'),
  ),
  fatal('bad pkt header', here),
  fatal('broken ParameterStatus packet', here),
  fatal('failed to store ParameterStatus', memory),
  // What follows, a replication client is told: its server fails while it logs in.
  fatal('login failed', test('a role that may not replicate is told that the login failed')),
  fatal(
    'connect timeout',
    test(
      'a server that does not answer its login in time is lost to it like one that has logged in',
    ),
  ),
  fatal('connect string changed', test('a RECONNECT ends its login')),
  fatal(
    'failed to answer authreq',
    test('a server that fails in its login is lost to it with the reason'),
  ),
  fatal(
    'unknown pkt from server',
    test('a server that fails in its login is lost to it with the reason'),
  ),
  fatal('bad cancel key', test('a server that fails in its login is lost to it with the reason')),
  fatal('exec_on_connect query failed', internals),
  fatal(
    'database removed',
    test(
      'clients of a database whose line is gone are closed, whatever they do, and nobody else is',
    ),
  ),
  fatal('peer removed', test('a request for a peer that a reload takes out of the list is closed')),
  fatal(
    'admin forced disconnect',
    test('KILL_CLIENT closes the client of that id, and its server if that is busy'),
  ),
  fatal('BUG: unknown packet callback flag', internals),
];

const ON_THE_CONSOLE: readonly ErrorText[] = [
  error("invalid command '%s', use SHOW HELP;", here),
  error('bad arguments', here),
  error('admin access needed', here),
  error('SET failed', never('SET')),
  error(
    'already suspended/paused',
    test('during a PAUSE of everything no other is begun, and what does not pause is done'),
  ),
  error(
    'cannot suspend with paused databases',
    test('SUSPEND is refused with an argument, to stats users, and while a database is paused'),
  ),
  error(
    'pooler is shutting down',
    test(
      'SHUTDOWN WAIT_FOR_CLIENTS can be followed by PAUSE, and by the faster forms, but not by RESUME',
    ),
  ),
  error('pooler is not paused/suspended', refused),
  error('database %s is not paused', refused),
  error('no such database: %s', refused),
  error('a database is required', refused),
  ...['pause', 'reconnect', 'disable', 'enable', 'kill', 'wait in'].map((verb) =>
    error(`cannot ${verb} admin db: %s`, refused, ' admin db: '),
  ),
  error(
    'invalid client pointer supplied',
    test('KILL_CLIENT of an idle client leaves the server, and needs an id'),
  ),
  error(
    'client not found',
    test('KILL_CLIENT closes the client of that id, and its server if that is busy'),
  ),
  error('extended query protocol not supported by admin console', never('improvement')),
  error('unsupported packet type for admin console: %d', here),
  error('no mem', memory),
  error('result prepare failed', memory),
  row('ERROR', 'F0000')(
    'RELOAD failed, see logs for additional details',
    test('RELOAD of a file with an error says that it failed, and the session goes on'),
  ),
  fatal('bad packet', here),
  fatal('incomplete pkt', never('improvement')),
  fatal('incomplete query', here),
  fatal('failure', internals),
];

const WITHOUT_A_WORD: readonly ErrorText[] = [
  logged('client close request', here),
  logged('client unexpected eof', here),
  logged('unexpected eof', here),
  logged('bad packet', here),
  logged('bad cancel request', here),
  logged('failed cancel request', test('an unknown key cancels nothing')),
  logged(
    'cancel request for console client',
    test('a console session that waits for nothing has nothing to cancel'),
  ),
  logged(
    'cancel request for idle client',
    test('a client without a query is not cancelled, now or at its next query'),
  ),
  // It is sent when the query that it means has been.
  logged('ignoring cancel request for server that is setting vars', never('improvement')),
  logged(
    'not sending cancel request for client that is now idle',
    test('a request that waits for parameters to be set ends with its client'),
  ),
  logged(
    'failed to send cancel request',
    test(
      'a request that cannot be delivered comes to nothing after cancel_wait_timeout at the latest',
    ),
  ),
  logged(
    'successfully sent cancel request',
    test('a query that runs is cancelled, and the requester closed without a word'),
  ),
  logged(
    'could not find peer to forward request to',
    test('the key of a peer that is not listed goes nowhere'),
  ),
  logged(
    'failed to forward cancel request because its TTL was exhausted',
    test('the key of a peer goes to it with one hop less, and with none left nowhere'),
  ),
  logged('pause cancel request failed', internals),
  logged(
    'cancel_wait_timeout',
    test('a request that no peer takes is closed after cancel_wait_timeout'),
  ),
  logged('SSL req inside SSL', later),
  logged('failed to ack SSL', internals),
  logged('failed to nak SSL', internals),
  logged('failed to nak GSS enc', internals),
  logged('failed to accept SSL', later),
  logged('failed to send auth req', internals),
  logged('unable to send protocol negotiation packet', internals),
  // The console's clients close with the words of all others.
  logged('close req', internals),
  logged('dead admin', internals),
  logged('out of memory', memory),
];

const OF_SERVERS: readonly ErrorText[] = [
  logged('obsolete connection', test('a free one at an old address is closed before it is used')),
  logged('idle server got dirty', here),
  logged('SV_IDLE server got dirty', here, ' server got dirty'),
  logged('SV_USED server got dirty', here, ' server got dirty'),
  logged('server idle timeout', here),
  logged('server lifetime over', here),
  logged('pause mode', test('PAUSE closes free servers, and who needs one waits for RESUME')),
  logged(
    'too many servers in the pool',
    test('surplus servers close when a pool becomes smaller, busy ones after their transactions'),
  ),
  logged('evicted for %s', here),
  logged(
    'close_needed',
    test('RECONNECT replaces free servers, and others when their transaction has ended'),
  ),
  logged('reset query failed', here),
  logged('test query failed', here),
  logged('var change failed', internals),
  logged('connect failed', here),
  logged(
    'cannot connect',
    test('a database without a host cannot be reached when unix_socket_dir is empty'),
  ),
  logged('unknown address family: %d', internals),
  logged('startup pkt failed', internals),
  logged('sslreq processing failed', internals),
  logged('bad sslreq answer', later),
  logged('received unencrypted data after SSL response', later),
  logged('TLS startup failed', later),
  logged('client disconnect while server was not ready', here),
  logged('client disconnected with query in progress', here),
  // A server with open requests is never as far as to be released.
  logged('client disconnected with queries in progress', internals),
  logged('client disconnect before everything was sent to the server', here),
  logged('client gave up on cancel request, so we also give up forwarding to server', internals),
  logged(
    'peer server was not necessary anymore, because client cancel connection was already closed',
    internals,
  ),
  logged(
    'replication client disconnected',
    test('a connection on its way to a server is closed when its client is'),
  ),
  logged(
    'replication client was closed',
    test('its server is closed when it leaves, in a transaction or a stream'),
  ),
  logged(
    'close unsafe file descriptors on suspend',
    test('SUSPEND closes servers that are to be checked before they are used'),
  ),
  logged('disko over', never('online takeover')),
  logged('bad packet', test('a row that does not fit its message is a bad packet')),
  logged('expected 2 columns from auth_query, not %hu', closedForQuery),
  logged('auth_query response contained null user name', never('improvement')),
  logged('unable to allocate new user for auth', memory),
  logged('error response from auth_query', closedForQuery),
  logged('unexpected response from auth_query', closedForQuery),
  logged('unable to send auth_query', internals),
];

export const ERROR_TABLE: readonly ErrorText[] = [
  ...AT_LOGIN,
  ...IN_THE_QUEUE,
  ...IN_SESSION,
  ...ON_THE_CONSOLE,
  ...WITHOUT_A_WORD,
  ...OF_SERVERS,
];
