/**
 * Message type bytes and request codes of the PostgreSQL frontend/backend protocol 3
 * (PostgreSQL documentation, "Message Formats"). Names are PostgreSQL's.
 */

/** Types of messages that a client sends. */
export const ClientMessage = {
  Query: 0x51,
  FunctionCall: 0x46,
  Parse: 0x50,
  Bind: 0x42,
  Describe: 0x44,
  Execute: 0x45,
  Close: 0x43,
  Sync: 0x53,
  Flush: 0x48,
  CopyData: 0x64,
  CopyDone: 0x63,
  CopyFail: 0x66,
  Terminate: 0x58,
  Password: 0x70,
} as const;

/** Types of messages that a server sends. */
export const ServerMessage = {
  Authentication: 0x52,
  BackendKeyData: 0x4b,
  ParameterStatus: 0x53,
  ReadyForQuery: 0x5a,
  ErrorResponse: 0x45,
  NoticeResponse: 0x4e,
  NotificationResponse: 0x41,
  CommandComplete: 0x43,
  EmptyQueryResponse: 0x49,
  PortalSuspended: 0x73,
  ParseComplete: 0x31,
  BindComplete: 0x32,
  CloseComplete: 0x33,
  RowDescription: 0x54,
  NoData: 0x6e,
  ParameterDescription: 0x74,
  DataRow: 0x44,
  FunctionCallResponse: 0x56,
  CopyInResponse: 0x47,
  CopyOutResponse: 0x48,
  CopyBothResponse: 0x57,
  CopyData: 0x64,
  CopyDone: 0x63,
  CopyFail: 0x66,
  NegotiateProtocolVersion: 0x76,
} as const;

/** Second Int32 of a packet without a type byte. */
export const RequestCode = {
  cancel: 80877102,
  ssl: 80877103,
  gssEncryption: 80877104,
  protocol2: 0x00020000,
  protocol3: 0x00030000,
} as const;

/**
 * The newest version of the protocol that is spoken, in both directions: 3.2, which brings cancel
 * keys of any length and nothing else that goes through here (PostgreSQL 18).
 */
export const NEWEST_PROTOCOL = 0x00030002;

/** Shortest and longest CancelRequest: a secret of 1 to 256 bytes, as PostgreSQL 18 takes. */
export const MIN_CANCEL_BYTES = 13;
export const MAX_CANCEL_BYTES = 268;

/** Int32 of an Authentication message. */
export const AuthenticationCode = {
  ok: 0,
  cleartextPassword: 3,
  md5Password: 5,
  sasl: 10,
  saslContinue: 11,
  saslFinal: 12,
} as const;

/** Transaction status byte of ReadyForQuery. */
export const TransactionStatus = { idle: 0x49, inBlock: 0x54, failed: 0x45 } as const;

/** Type byte and length word. */
export const HEADER_BYTES = 5;

/** Longest startup packet that PostgreSQL takes (MAX_STARTUP_PACKET_LENGTH). */
export const MAX_STARTUP_BYTES = 10_000;

/** Longest authentication message that PostgreSQL takes (PG_MAX_AUTH_TOKEN_LENGTH). */
export const MAX_AUTH_BYTES = 65_535;
