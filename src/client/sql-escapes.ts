/**
 * What a string constant or a quoted name says when it is written with escapes (PostgreSQL
 * documentation, "String Constants with C-Style Escapes" and "Identifiers and Key Words"). It serves to
 * compare with names and words in ASCII: characters beyond are told as they come, and what is no
 * escape is left as it stands, since the server will refuse it.
 */

const SIMPLE: Readonly<Record<string, string>> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' };

/** A piece of a continued constant, or a comment between two. */
const PIECES = /--[^\r\n]*|'((?:[^']|'')*)'?/g;
const PIECES_WITH_BACKSLASHES = /--[^\r\n]*|'((?:[^'\\]|\\.|'')*)'?/gs;

/** \x41, \101, \u0041, \U00000041, or any other character, which stands for itself. */
const C_STYLE = /\\(?:x([0-9a-f]{1,2})|([0-7]{1,3})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/gis;

/**
 * @param constant with its quotes, and all of its pieces when it is continued on a new line
 * @param hasBackslashes a backslash in it escapes what follows
 */
export function constantValue(constant: string, hasBackslashes: boolean): string {
  const pieces = constant.matchAll(hasBackslashes ? PIECES_WITH_BACKSLASHES : PIECES);
  const text = [...pieces].map(([, body]) => body ?? '').join('');
  return hasBackslashes ? cUnescaped(text) : text;
}

function cUnescaped(text: string): string {
  return text.replace(
    C_STYLE,
    (
      whole: string,
      hex?: string,
      octal?: string,
      short?: string,
      long?: string,
      other?: string,
    ) => {
      if (other !== undefined) return SIMPLE[other] ?? other;
      if (octal !== undefined) return String.fromCharCode(Number.parseInt(octal, 8));
      return character((hex ?? short ?? long)!, whole);
    },
  );
}

/**
 * What stands between the quotes of U&"" or U&'': `\0041`, `\+000041` and a doubled `\`.
 *
 * @param mark the character that UESCAPE names in place of the backslash
 */
export function unicodeUnescaped(body: string, mark: string): string {
  let text = '';
  let at = 0;
  for (;;) {
    const found = body.indexOf(mark, at);
    if (found === -1) return text + body.slice(at);
    text += body.slice(at, found);
    const rest = body.slice(found + 1, found + 8);
    const [code, short, long] = /^(?:([0-9a-f]{4})|\+([0-9a-f]{6}))/i.exec(rest) ?? [];
    text += code === undefined ? mark : character((short ?? long)!, code);
    const isDoubled = code === undefined && rest.startsWith(mark);
    at = found + 1 + (isDoubled ? 1 : (code?.length ?? 0));
  }
}

function character(hex: string, otherwise: string): string {
  const code = Number.parseInt(hex, 16);
  return code <= 0x10ffff ? String.fromCodePoint(code) : otherwise;
}
