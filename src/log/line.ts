/**
 * One log line in PgBouncer's layout: `YYYY-MM-DD HH:MM:SS.mmm ZZZ [pid] LEVEL text`, in local time,
 * newlines inside the text becoming newline and tab.
 */
export function formatLine(at: Date, pid: number, level: string, text: string): string {
  const body = text.includes('\n') ? text.trimEnd().replaceAll('\n', '\n\t') : text;
  return `${formatTime(at)} [${pid}] ${level} ${body}\n`;
}

/** Local time with milliseconds and the zone's abbreviation. */
function formatTime(at: Date): string {
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${date} ${time}.${String(at.getMilliseconds()).padStart(3, '0')} ${zoneOf(at)}`;
}

function two(value: number): string {
  return value < 10 ? `0${value}` : String(value);
}

/** Zone as `UTC` or `+HH` / `+HHMM`. */
function zoneOf(at: Date): string {
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return 'UTC';
  const size = Math.abs(minutes);
  const tail = size % 60 === 0 ? '' : two(size % 60);
  return `${minutes < 0 ? '-' : '+'}${two(Math.floor(size / 60))}${tail}`;
}
