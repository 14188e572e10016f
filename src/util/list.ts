/** What an element needs to stand in one `List` at a time; set all three to null in the constructor. */
export interface Listed<T extends Listed<T>> {
  listPrev: T | null;
  listNext: T | null;
  list: List<T> | null;
}

/**
 * A doubly linked list whose links live in the elements, so that an element leaves from the middle
 * in constant time and nothing is allocated. An element stands in at most one list.
 */
export class List<T extends Listed<T>> {
  #first: T | null = null;
  #last: T | null = null;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get first(): T | null {
    return this.#first;
  }

  get last(): T | null {
    return this.#last;
  }

  append(element: T): void {
    element.list?.remove(element);
    element.list = this;
    element.listPrev = this.#last;
    element.listNext = null;
    if (this.#last === null) this.#first = element;
    else this.#last.listNext = element;
    this.#last = element;
    this.#size++;
  }

  prepend(element: T): void {
    element.list?.remove(element);
    element.list = this;
    element.listNext = this.#first;
    element.listPrev = null;
    if (this.#first === null) this.#last = element;
    else this.#first.listPrev = element;
    this.#first = element;
    this.#size++;
  }

  /** Takes the element out; does nothing when it is not in this list. */
  remove(element: T): void {
    if (element.list !== this) return;
    if (element.listPrev === null) this.#first = element.listNext;
    else element.listPrev.listNext = element.listNext;
    if (element.listNext === null) this.#last = element.listPrev;
    else element.listNext.listPrev = element.listPrev;
    element.list = null;
    element.listPrev = null;
    element.listNext = null;
    this.#size--;
  }

  /** Walks from first to last; the element in hand may leave the list meanwhile. */
  *[Symbol.iterator](): Generator<T> {
    let element = this.#first;
    while (element !== null) {
      const next: T | null = element.listNext;
      yield element;
      element = next;
    }
  }
}
