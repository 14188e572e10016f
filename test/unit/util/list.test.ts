import assert from 'node:assert/strict';
import { test } from 'node:test';
import { List, type Listed } from '../../../src/util/list.ts';
import { pick, randomFrom } from './random.ts';

class Item implements Listed<Item> {
  listPrev: Item | null = null;
  listNext: Item | null = null;
  list: List<Item> | null = null;
  readonly name: string;

  constructor(name: string) {
    this.name = name;
  }
}

function names(list: List<Item>): string {
  return [...list].map((item) => item.name).join('');
}

/** The same from the last element back, by the links alone. */
function namesBackwards(list: List<Item>): string {
  let text = '';
  for (let item = list.last; item !== null; item = item.listPrev) text = item.name + text;
  return text;
}

const items = (letters: string) => [...letters].map((letter) => new Item(letter));

test('append puts an element last, prepend first', () => {
  const list = new List<Item>();
  const [a, b, c] = items('abc');
  list.append(a!);
  list.append(b!);
  list.prepend(c!);
  assert.equal(names(list), 'cab');
  assert.equal(namesBackwards(list), 'cab');
  assert.equal(list.first, c);
  assert.equal(list.last, b);
  assert.equal(list.size, 3);
});

test('an element leaves from the front, the middle and the end', () => {
  for (const [gone, left] of [
    ['a', 'bc'],
    ['b', 'ac'],
    ['c', 'ab'],
  ] as const) {
    const list = new List<Item>();
    const all = items('abc');
    for (const item of all) list.append(item);
    const item = all.find(({ name }) => name === gone)!;
    list.remove(item);
    assert.equal(names(list), left);
    assert.equal(namesBackwards(list), left);
    assert.deepEqual([item.list, item.listPrev, item.listNext], [null, null, null]);
  }
});

test('an element that joins a list leaves the one it was in', () => {
  const [here, there] = [new List<Item>(), new List<Item>()];
  const [a, b] = items('ab');
  here.append(a!);
  here.append(b!);
  there.prepend(a!);
  assert.equal(names(here), 'b');
  assert.equal(names(there), 'a');
  there.append(a!);
  assert.equal(names(there), 'a');
  assert.equal(there.size, 1);
});

test('removing an element that is elsewhere does nothing', () => {
  const [here, there] = [new List<Item>(), new List<Item>()];
  const [a, b] = items('ab');
  here.append(a!);
  there.remove(a!);
  there.remove(b!);
  assert.equal(names(here), 'a');
  assert.equal(there.size, 0);
});

test('a walk sees every element once although each leaves, or moves to another list, in its turn', () => {
  const [here, there] = [new List<Item>(), new List<Item>()];
  for (const item of items('abcdef')) here.append(item);
  let seen = '';
  for (const item of here) {
    seen += item.name;
    if (seen.length % 2 === 0) here.remove(item);
    else there.append(item);
  }
  assert.equal(seen, 'abcdef');
  assert.equal(here.size, 0);
  assert.equal(names(there), 'ace');
});

test('random moves between lists agree with arrays', () => {
  const random = randomFrom(11);
  const lists = [new List<Item>(), new List<Item>(), new List<Item>()];
  const models: Item[][] = [[], [], []];
  const all = items('abcdefghij');
  for (let step = 0; step < 5000; step++) {
    const item = pick(random, all);
    const target = Math.floor(random() * 3);
    for (const model of models) if (model.includes(item)) model.splice(model.indexOf(item), 1);
    switch (Math.floor(random() * 3)) {
      case 0:
        lists[target]!.append(item);
        models[target]!.push(item);
        break;
      case 1:
        lists[target]!.prepend(item);
        models[target]!.unshift(item);
        break;
      default:
        item.list?.remove(item);
    }
    for (const [i, list] of lists.entries()) {
      const expected = models[i]!.map(({ name }) => name).join('');
      assert.equal(names(list), expected, `step ${step}`);
      assert.equal(namesBackwards(list), expected, `step ${step}`);
      assert.equal(list.size, expected.length, `step ${step}`);
    }
  }
});
