import { getSystemErrorMap } from 'node:util';

/** Texts of the C library where they are not merely libuv's with a capital letter. */
const TEXTS: Readonly<Record<string, string>> = {
  EADDRNOTAVAIL: 'Cannot assign requested address',
  EAGAIN: 'Resource temporarily unavailable',
  EAFNOSUPPORT: 'Address family not supported by protocol',
  EBADF: 'Bad file descriptor',
  EBUSY: 'Device or resource busy',
  EEXIST: 'File exists',
  EIO: 'Input/output error',
  EISDIR: 'Is a directory',
  EINVAL: 'Invalid argument',
  ELOOP: 'Too many levels of symbolic links',
  EMFILE: 'Too many open files',
  ENAMETOOLONG: 'File name too long',
  ENFILE: 'Too many open files in system',
  ENOMEM: 'Cannot allocate memory',
  ENOTDIR: 'Not a directory',
  ENXIO: 'No such device or address',
  EPIPE: 'Broken pipe',
  EROFS: 'Read-only file system',
  ETXTBSY: 'Text file busy',
};

/**
 * Text of a failed system call as `strerror` words it, since PgBouncer's log lines end with it and
 * rules match on it. Takes an exception of Node or a negative error number.
 */
export function osErrorText(error: unknown): string {
  const number = typeof error === 'number' ? error : errnoOf(error);
  const entry = number === undefined ? undefined : getSystemErrorMap().get(number);
  if (entry === undefined) return error instanceof Error ? error.message : String(error);
  const [name, text] = entry;
  return TEXTS[name] ?? text.charAt(0).toUpperCase() + text.slice(1);
}

/** Code of a failed system call, such as `ENOENT`; empty when the error is of another kind. */
export function osErrorCode(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : '';
}

function errnoOf(error: unknown): number | undefined {
  return error instanceof Error && 'errno' in error && typeof error.errno === 'number'
    ? error.errno
    : undefined;
}
