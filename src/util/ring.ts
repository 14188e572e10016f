/**
 * A first-in first-out queue over a circular array that doubles when full, so that push and shift
 * cost the same at any length (`Array.shift` moves every element).
 */
export class Ring<T> {
  #items: (T | undefined)[];
  #head = 0;
  #size = 0;

  /** @param capacity first number of places, a power of two */
  constructor(capacity = 8) {
    this.#items = new Array<T | undefined>(capacity);
  }

  get size(): number {
    return this.#size;
  }

  push(item: T): void {
    if (this.#size === this.#items.length) this.#grow();
    this.#items[(this.#head + this.#size) & (this.#items.length - 1)] = item;
    this.#size++;
  }

  /** The oldest item, or undefined when empty. */
  peek(): T | undefined {
    return this.#size === 0 ? undefined : this.#items[this.#head];
  }

  /** The item `index` places behind the oldest one. */
  at(index: number): T | undefined {
    if (index < 0 || index >= this.#size) return undefined;
    return this.#items[(this.#head + index) & (this.#items.length - 1)];
  }

  /** Takes the oldest item off, or gives undefined when empty. */
  shift(): T | undefined {
    if (this.#size === 0) return undefined;
    const item = this.#items[this.#head];
    this.#items[this.#head] = undefined;
    this.#head = (this.#head + 1) & (this.#items.length - 1);
    this.#size--;
    return item;
  }

  clear(): void {
    while (this.#size > 0) this.shift();
  }

  #grow(): void {
    const old = this.#items;
    const bigger = new Array<T | undefined>(old.length * 2);
    for (let i = 0; i < this.#size; i++) bigger[i] = old[(this.#head + i) & (old.length - 1)];
    this.#items = bigger;
    this.#head = 0;
  }
}
