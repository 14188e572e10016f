/** `text` if its UTF-8 has at most `maxBytes`, else as many whole characters of it as fit. */
export function cutText(text: string, maxBytes: number): string {
  // A UTF-16 unit takes at most three bytes, so short texts need no second look.
  if (text.length * 3 <= maxBytes) return text;
  const bytes = Buffer.from(text);
  if (bytes.length <= maxBytes) return text;
  let end = maxBytes;
  while ((bytes[end]! & 0xc0) === 0x80) end--;
  return bytes.toString('utf8', 0, end);
}
