import { isIPv4, isIPv6 } from 'node:net';

/**
 * The bytes of an IP address, 4 or 16, in network order; null when `text` is none. An IPv6 zone
 * (`%eth0`) is refused. An IPv4 address written as an IPv6 one stays an IPv6 address.
 */
export function ipBytes(text: string): number[] | null {
  if (isIPv4(text)) return text.split('.').map(Number);
  if (!isIPv6(text) || text.includes('%')) return null;
  const [head, tail] = text.split('::');
  const front = groupBytes(head!);
  if (tail === undefined) return front;
  const back = groupBytes(tail);
  const gap = new Array<number>(16 - front.length - back.length).fill(0);
  return [...front, ...gap, ...back];
}

/** Groups between colons as bytes; the last may be an IPv4 address. */
function groupBytes(text: string): number[] {
  if (text === '') return [];
  return text.split(':').flatMap((group) => {
    if (group.includes('.')) return group.split('.').map(Number);
    const value = Number.parseInt(group, 16);
    return [value >> 8, value & 0xff];
  });
}
