import { resolve } from 'node:path';
import type { ReadFile } from './scanner.ts';

type ListFolder = (path: string) => readonly string[];

/** What a load has read, by absolute path, so that another one need not read it again. */
export interface FileReads {
  readonly texts: ReadonlyMap<string, string>;
  readonly folders: ReadonlyMap<string, readonly string[]>;
}

/**
 * Readers that note in `reads` what they have read.
 *
 * @param known read in the place of the files themselves
 */
export function noted(
  readFile: ReadFile,
  listFolder: ListFolder,
  known: FileReads | undefined,
): { readFile: ReadFile; listFolder: ListFolder; reads: FileReads } {
  const texts = new Map<string, string>();
  const folders = new Map<string, readonly string[]>();
  return {
    readFile: (path) => {
      const text = known?.texts.get(resolve(path)) ?? readFile(path);
      texts.set(resolve(path), text);
      return text;
    },
    listFolder: (path) => {
      const names = known?.folders.get(resolve(path)) ?? listFolder(path);
      folders.set(resolve(path), names);
      return names;
    },
    reads: { texts, folders },
  };
}
