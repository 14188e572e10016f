import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parse as parseIni } from 'ini';
import { formatProblem } from '../../../src/config/problem.ts';
import { type ScanEvent, scanConfig } from '../../../src/config/scanner.ts';

/** Reads from a map as the operating system would from a disk. */
function readFrom(files: Record<string, string>) {
  return (path: string): string => {
    const text = Object.hasOwn(files, path) ? files[path] : undefined;
    if (text !== undefined) return text;
    throw Object.assign(new Error(`ENOENT: no such file or directory, open '${path}'`), {
      code: 'ENOENT',
      errno: -2,
    });
  };
}

function scan(files: Record<string, string> | string): ScanEvent[] {
  return [...scanConfig('f', readFrom(typeof files === 'string' ? { f: files } : files))];
}

/** One short text an event. */
function show(events: readonly ScanEvent[]): string[] {
  return events.map((event) => {
    if (event.kind === 'problem') return `! ${formatProblem(event.problem)}`;
    if (event.kind === 'section') return `${event.file}:${event.line} [${event.name}]`;
    return `${event.file}:${event.line} ${event.section}/${event.key}=${event.value}`;
  });
}

test('the lexical rules are those of PgBouncer', () => {
  const rows: [string, string[]][] = [
    ['', []],
    ['\n\n  \n\t\r\n', []],
    ['; note\n  # note\n\t;x', []],
    ['a=b', ['f:1 null/a=b']],
    ['[s]\na = b', ['f:1 [s]', 'f:2 s/a=b']],
    ['[s]\n  a\t=\tb  \t', ['f:1 [s]', 'f:2 s/a=b']],
    ['[s]\r\na = b\r\n', ['f:1 [s]', 'f:2 s/a=b']],
    ['[s]\na=', ['f:1 [s]', 'f:2 s/a=']],
    ['[s]\na =   \r\nb=1', ['f:1 [s]', 'f:2 s/a=', 'f:3 s/b=1']],
    ['[s]\na = b ; c # d', ['f:1 [s]', 'f:2 s/a=b ; c # d']],
    ['[s]\na = b=c', ['f:1 [s]', 'f:2 s/a=b=c']],
    ["[s]\na = 'b c'", ['f:1 [s]', "f:2 s/a='b c'"]],
    ["[s]\na = '123'", ['f:1 [s]', "f:2 s/a='123'"]],
    ['[s]\na = "b"', ['f:1 [s]', 'f:2 s/a="b"']],
    ['[s]\na = true', ['f:1 [s]', 'f:2 s/a=true']],
    ['[s]\na = null', ['f:1 [s]', 'f:2 s/a=null']],
    ['[s]\na = b\\;c\\', ['f:1 [s]', 'f:2 s/a=b\\;c\\']],
    ['[s]\na = [x]', ['f:1 [s]', 'f:2 s/a=[x]']],
    ['[s]\na = é\u2028x\u2029y\u00a0', ['f:1 [s]', 'f:2 s/a=é\u2028x\u2029y\u00a0']],
    ['[s]\na.b-c_D*9 = 1', ['f:1 [s]', 'f:2 s/a.b-c_D*9=1']],
    ['[s]\n* = 1', ['f:1 [s]', 'f:2 s/*=1']],
    ["[s]\n'my db' = 1", ['f:1 [s]', 'f:2 s/my db=1']],
    ["[s]\n'*'=1", ['f:1 [s]', 'f:2 s/*=1']],
    ["[s]\n'a=b;c' = 1", ['f:1 [s]', 'f:2 s/a=b;c=1']],
    ['[s]\n__proto__ = 1', ['f:1 [s]', 'f:2 s/__proto__=1']],
    ['[s]\nconstructor = 1', ['f:1 [s]', 'f:2 s/constructor=1']],
    ['[s] ; note', ['f:1 [s]']],
    ['[s]   ', ['f:1 [s]']],
    ['[s] a = 1', ['f:1 [s]', 'f:1 s/a=1']],
    ['[s][t]a=1', ['f:1 [s]', 'f:1 [t]', 'f:1 t/a=1']],
    ['[ s ]', ['f:1 [ s ]']],
    ['[a.b]', ['f:1 [a.b]']],
    ['[]', ['f:1 []']],
    ['[s]\na=1\na=2', ['f:1 [s]', 'f:2 s/a=1', 'f:3 s/a=2']],
    [
      '[s]\na=1\n[t]\nb=2\n[s]\nc=3',
      ['f:1 [s]', 'f:2 s/a=1', 'f:3 [t]', 'f:4 t/b=2', 'f:5 [s]', 'f:6 s/c=3'],
    ],
  ];
  for (const [text, expected] of rows) {
    assert.deepEqual(show(scan(text)), expected, JSON.stringify(text));
  }
});

test('a malformed line is named with its true line number and the next line is still read', () => {
  const rows: [string, RegExp][] = [
    ['key', /no "=" after the key/],
    ['key value', /no "=" after the key/],
    ['my db = 1', /no "=" after the key/],
    ['k[] = v', /no "=" after the key/],
    ['"my db" = 1', /single quotes, not double quotes/],
    ["'my db = 1", /no closing quote/],
    ["'' = 1", /empty key/],
    ['= 1', /no key before "="/],
    ['[open', /no "]"/],
    ['ключ = 1', /a key holds letters/],
    ['\ufeff[s]', /a key holds letters/],
    ['%include', /%include names no file/],
    ['%include   ', /%include names no file/],
    ['%includefile', /%include/],
    ['%other x', /a key holds letters/],
    ['a = 1\0b', /NUL/],
  ];
  for (const [line, why] of rows) {
    const shown = show(scan(`[s]\n\n${line}\n\n\nok = 1`));
    assert.equal(shown.length, 3, line);
    assert.match(shown[1]!, /^! f:3: syntax error in configuration: /, line);
    assert.match(shown[1]!, why, line);
    assert.equal(shown[2], 'f:6 s/ok=1');
  }
});

test('a syntax error never shows the line, which may hold a password', () => {
  const shown = show(scan('[s]\nmy db = password=hunter2\n"x" = password=hunter2'));
  assert.equal(shown.length, 3);
  assert.doesNotMatch(shown.join(), /hunter2/);
});

test('a missing main file is one problem of the whole file', () => {
  assert.deepEqual(show(scan({})), ['! f: could not load file "f": No such file or directory']);
});

test('an included file shares the section on the way in and on the way out', () => {
  const events = scan({
    f: '[a]\nx=1\n %include  sub/two.ini  \r\ny=2',
    'sub/two.ini': 'k=1\n[b]\nl=2',
  });
  assert.deepEqual(show(events), [
    'f:1 [a]',
    'f:2 a/x=1',
    'sub/two.ini:1 a/k=1',
    'sub/two.ini:2 [b]',
    'sub/two.ini:3 b/l=2',
    'f:4 b/y=2',
  ]);
});

test('an include may follow a header on its line and may come before any header', () => {
  const files = { f: '%include g\n[b] %include g', g: 'k=1' };
  assert.deepEqual(show(scan(files)), ['g:1 null/k=1', 'f:2 [b]', 'g:1 b/k=1']);
});

test('the path of an include is relative to the working directory and taken literally', () => {
  const asked: string[] = [];
  const files = readFrom({
    'd/f': "%include '*.ini'\n%include ~/x y\n%include g",
    g: '%include h',
  });
  const events = scanConfig('d/f', (path) => {
    asked.push(path);
    return files(path);
  });
  assert.equal([...events].length, 3);
  assert.deepEqual(asked, ['d/f', "'*.ini'", '~/x y', 'g', 'h']);
});

test('a missing include is named where it is included, and the rest is still read', () => {
  assert.deepEqual(show(scan({ f: '[a]\n%include g\nx=1' })), [
    'f:1 [a]',
    '! f:2: %include: could not load file "g": No such file or directory',
    'f:3 a/x=1',
  ]);
});

test('ten levels of include below the main file are read and the eleventh is refused', () => {
  const chain = (levels: number): Record<string, string> => {
    const files: Record<string, string> = { f: '[s]\n%include f1\nend=1' };
    for (let level = 1; level <= levels; level++) {
      files[`f${level}`] = level < levels ? `k=${level}\n%include f${level + 1}` : `k=${level}`;
    }
    return files;
  };
  const ten = show(scan(chain(10)));
  assert.equal(ten.at(-2), 'f10:1 s/k=10');
  assert.equal(ten.at(-1), 'f:3 s/end=1');
  const eleven = show(scan(chain(11)));
  assert.equal(eleven.at(-1), '! f10:2: %include: include nesting level too deep');
});

test('a file that includes itself many times ends at once', () => {
  let reads = 0;
  const events = scanConfig('f', () => {
    reads++;
    return '%include f\n'.repeat(20);
  });
  const shown = show([...events]);
  assert.deepEqual(shown, ['! f:1: %include: include nesting level too deep']);
  assert.equal(reads, 11);
});

/** Park–Miller; the seed is printed when an expectation fails. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}

test('on plain "key = value" files the scanner agrees with the ini package', () => {
  const keyLetters = 'abcXYZ019_-';
  const valueLetters = 'abcXYZ019_-+/:,.@ (){}é!?$&*';
  for (let seed = 1; seed <= 300; seed++) {
    const random = randomFrom(seed);
    const word = (letters: string, least: number, most: number) =>
      Array.from(
        { length: least + random(most - least + 1) },
        () => letters[random(letters.length)],
      )
        .join('')
        .trim();
    const lines: string[] = [];
    for (let section = 0; section < 1 + random(4); section++) {
      lines.push(`[s${section}]`);
      for (let entry = 0; entry < random(8); entry++) {
        // A letter first: ini reads a bare "true" or a number as itself only inside quotes, but
        // turns the words true, false and null into other types.
        const value = `v${word(valueLetters, 0, 20)}`;
        const blanks = ' '.repeat(random(3));
        lines.push(`${blanks}k${word(keyLetters, 0, 6)}${blanks}=${blanks}${value}${blanks}`);
        if (random(5) === 0)
          lines.push(random(2) === 0 ? '; a comment = 1' : '# [not] a = section');
        if (random(5) === 0) lines.push('');
      }
    }
    const text = lines.join(random(2) === 0 ? '\n' : '\r\n');
    const ours: Record<string, Record<string, string>> = {};
    for (const event of scan(text)) {
      assert.notEqual(event.kind, 'problem', `seed ${seed}\n${text}`);
      if (event.kind === 'section') ours[event.name] ??= {};
      if (event.kind === 'entry') ours[event.section!]![event.key] = event.value;
    }
    const oracle = JSON.parse(JSON.stringify(parseIni(text)));
    assert.deepEqual(ours, oracle, `seed ${seed}\n${text}`);
  }
});

test('every value without a line end comes through unchanged', () => {
  const letters = [
    'a',
    ' b',
    '"',
    "'",
    '\\',
    ';',
    '#',
    '=',
    '[',
    ']',
    '%',
    '\t.',
    '\u2028',
    '\u{1f600}',
    'é',
    '$',
  ];
  for (let seed = 1; seed <= 500; seed++) {
    const random = randomFrom(seed);
    const middle = Array.from({ length: random(12) }, () => letters[random(letters.length)]).join(
      '',
    );
    const value = `${middle}.`.replace(/^[ \t]+/, '');
    const events = scan(`[s]\n'k' = ${value}\n`);
    const last = events.at(-1)!;
    assert.equal(last.kind === 'entry' ? last.value : last.kind, value, `seed ${seed}`);
  }
});
