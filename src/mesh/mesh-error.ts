/** A sibling worker did not answer, or not in a way that can be used. */
export class MeshError extends Error {
  override readonly name = 'MeshError';
  readonly workerId: number;

  constructor(workerId: number, what: string) {
    super(`worker ${workerId} ${what}`);
    this.workerId = workerId;
  }
}
