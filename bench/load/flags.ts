/** Values of a command's options. Both throw an error that names the option. */

/** One of a few words. */
export function oneOf<T extends string>(flag: string, value: string, allowed: readonly T[]): T {
  const found = allowed.find((each) => each === value);
  if (found === undefined)
    throw new Error(`--${flag}: ${value} is not one of ${allowed.join(', ')}`);
  return found;
}

/** A whole number above 0. */
export function count(flag: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new Error(`--${flag}: ${text} is no count`);
  return value;
}
