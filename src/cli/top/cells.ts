/** Text in columns of a terminal: how wide it is, cut and filled up, numbers in few places. */

const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u;
const NARROW = /[\u00a9\u00ae]/;
const MARK = /[\p{Mn}\p{Me}\p{Cf}]/u;
const CONTROL = /[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu;
const ELLIPSIS = '…';

/** Columns that a character takes. */
function widthOf(character: string): number {
  if (MARK.test(character)) return 0;
  return WIDE.test(character) && !NARROW.test(character) ? 2 : 1;
}

/**
 * `text` in exactly `width` columns, cut with `…` where it is longer. What would move the cursor, or
 * turn the direction of what follows, is shown as `?`.
 */
export function fit(text: string, width: number, isRight = false): string {
  const characters = Array.from(text.replace(CONTROL, '?'));
  const total = characters.reduce((sum, each) => sum + widthOf(each), 0);
  if (total <= width) {
    const blanks = ' '.repeat(width - total);
    return isRight ? blanks + characters.join('') : characters.join('') + blanks;
  }
  let kept = '';
  let used = 0;
  for (const each of characters) {
    if (used + widthOf(each) > width - 1) break;
    kept += each;
    used += widthOf(each);
  }
  return width <= 0 ? '' : kept + ELLIPSIS + ' '.repeat(width - used - 1);
}

/** A count in at most five places: `950`, `12.3k`, `4.5M`. */
export function short(value: number): string {
  return scaled(value, 1000, ['', 'k', 'M', 'G', 'T', 'P']);
}

/** Bytes, in units of 1024: `512B`, `1.5K`, `30M`. */
export function bytes(value: number): string {
  return scaled(value, 1024, ['B', 'K', 'M', 'G', 'T', 'P']);
}

/** A time, given in microseconds: `90us`, `1.5ms`, `2.0s`. */
export function time(us: number): string {
  if (us < 1000) return `${Math.round(us)}us`;
  if (us < 999_500) return `${digits(us / 1000)}ms`;
  return `${digits(us / 1_000_000)}s`;
}

function scaled(value: number, base: number, units: readonly string[]): string {
  let rest = value;
  let unit = 0;
  while (rest >= base * 0.9995 && unit < units.length - 1) {
    rest /= base;
    unit++;
  }
  const isWhole = unit === 0 && Number.isInteger(rest);
  return `${isWhole ? rest : digits(rest)}${units[unit]}`;
}

function digits(value: number): string {
  return value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}
