import { readFileSync } from 'node:fs';

/**
 * The abbreviation of the local time zone (`CET`, `IST`, `-03`), which `Intl` does not tell for most
 * zones: it is read from the compiled tz database file (TZif, RFC 9636) of `TZ` or `/etc/localtime`.
 */

const ZONE_FOLDER = '/usr/share/zoneinfo/';
const HEADER_BYTES = 44;

/** One kind of local time: how far it is ahead of UTC, in seconds, and what it is called. */
export interface ZoneName {
  readonly offset: number;
  readonly name: string;
}

/** Names of a zone over time. */
export interface Zone {
  /** Moments, in seconds since 1970 and ascending, from which `names` of the same place hold. */
  readonly from: readonly number[];
  readonly names: readonly ZoneName[];
  /** Every kind of time that the zone ever had, and those of its rule for the future first. */
  readonly all: readonly ZoneName[];
}

let zone: Zone | null | undefined;
let lastOffset: number | undefined;
let lastName = '';

/** Abbreviation of the process's zone at a moment: from the tz database, else `±HH` or `±HHMM`. */
export function zoneAbbreviation(at: Date): string {
  const offset = -at.getTimezoneOffset();
  if (offset === lastOffset) return lastName;
  zone ??= loadZone(process.env['TZ']);
  lastName = nameAt(zone, at, offset * 60) ?? numericZone(offset);
  lastOffset = offset;
  return lastName;
}

/** Name that a zone has at a moment when local time is `offset` seconds ahead of UTC. */
export function nameAt(zone: Zone | null, at: Date, offset: number): string | undefined {
  if (zone === null) return undefined;
  const seconds = at.getTime() / 1000;
  let place = -1;
  while (place + 1 < zone.from.length && zone.from[place + 1]! <= seconds) place++;
  const isInTable = place >= 0 && place < zone.from.length - 1;
  if (isInTable && zone.names[place]!.offset === offset) return zone.names[place]!.name;
  return zone.all.find((entry) => entry.offset === offset)?.name;
}

/** `UTC`, `+01`, `-0330`: what is written where no name is known. */
export function numericZone(offsetMinutes: number): string {
  if (offsetMinutes === 0) return 'UTC';
  const size = Math.abs(offsetMinutes);
  const hours = String(Math.floor(size / 60)).padStart(2, '0');
  const tail = size % 60 === 0 ? '' : String(size % 60).padStart(2, '0');
  return `${offsetMinutes < 0 ? '-' : '+'}${hours}${tail}`;
}

/** Zone that a value of `TZ` means: a name, a path, a POSIX rule; unset is the system's zone. */
export function loadZone(tz: string | undefined): Zone | null {
  const name = tz?.startsWith(':') ? tz.slice(1) : tz;
  if (name === '') return null;
  const path = name === undefined ? '/etc/localtime' : name;
  try {
    return readZone(readFileSync(path.startsWith('/') ? path : ZONE_FOLDER + path));
  } catch {
    const names = name === undefined ? [] : readRule(name);
    return names.length === 0 ? null : { from: [], names: [], all: names };
  }
}

/** Reads a TZif file; null when it is none. Throws RangeError when it is cut short. */
export function readZone(bytes: Buffer): Zone | null {
  if (bytes.toString('latin1', 0, 4) !== 'TZif') return null;
  if (bytes[4] === 0) return readBlock(bytes, 0, 4).zone;
  const first = readBlock(bytes, 0, 4);
  const second = readBlock(bytes, first.end, 8);
  const footer = bytes.toString('latin1', second.end).split('\n')[1] ?? '';
  return { ...second.zone, all: [...readRule(footer), ...second.zone.all] };
}

/** A TZif header and its data, whose times take `timeBytes` each. */
function readBlock(bytes: Buffer, start: number, timeBytes: 4 | 8): { zone: Zone; end: number } {
  const [utcCount, stdCount, leapCount, timeCount, typeCount, charCount] = [
    20, 24, 28, 32, 36, 40,
  ].map((at) => bytes.readUInt32BE(start + at)) as [number, number, number, number, number, number];
  const times = start + HEADER_BYTES;
  const indexes = times + timeCount * timeBytes;
  const types = indexes + timeCount;
  const chars = types + typeCount * 6;
  const end = chars + charCount + leapCount * (timeBytes + 4) + stdCount + utcCount;

  const all: ZoneName[] = [];
  for (let i = 0; i < typeCount; i++) {
    const nameStart = chars + bytes.readUInt8(types + i * 6 + 5);
    const name = bytes.toString('latin1', nameStart, bytes.indexOf(0, nameStart));
    all.push({ offset: bytes.readInt32BE(types + i * 6), name });
  }
  const from: number[] = [];
  const names: ZoneName[] = [];
  for (let i = 0; i < timeCount; i++) {
    const at = times + i * timeBytes;
    from.push(timeBytes === 8 ? Number(bytes.readBigInt64BE(at)) : bytes.readInt32BE(at));
    names.push(all[bytes.readUInt8(indexes + i)]!);
  }
  return { zone: { from, names, all: all.reverse() }, end };
}

/** Names in a POSIX rule such as `CET-1CEST,M3.5.0,M10.5.0/3` or `<-03>3`. */
function readRule(rule: string): ZoneName[] {
  const name = `(?:<([^>]+)>|([A-Za-z]{3,}))`;
  const offset = String.raw`([+-]?\d+(?::\d+){0,2})`;
  const found = new RegExp(`^${name}${offset}(?:${name}${offset}?)?`).exec(rule);
  if (found === null) return [];
  const standard = { name: found[1] ?? found[2]!, offset: ruleSeconds(found[3]!) };
  const summerName = found[4] ?? found[5];
  if (summerName === undefined) return [standard];
  const summerOffset = found[6] === undefined ? standard.offset + 3600 : ruleSeconds(found[6]);
  return [standard, { name: summerName, offset: summerOffset }];
}

/** Seconds ahead of UTC: POSIX counts hours behind it. */
function ruleSeconds(text: string): number {
  const [hours, minutes = 0, seconds = 0] = text.replace(/^[+-]/, '').split(':').map(Number);
  const size = hours! * 3600 + minutes * 60 + seconds;
  return text.startsWith('-') ? size : -size || 0;
}
