/**
 * Times `round`, which handles `count` messages a call, and prints nanoseconds a message: the best
 * and the median of many short samples, since other processes only ever add to a sample.
 */
export function measure(name: string, count: number, round: () => void): void {
  const WARM_UP_MS = 300;
  const SAMPLES = 40;
  const SAMPLE_MS = 20;
  const warmUpEnd = performance.now() + WARM_UP_MS;
  let rounds = 0;
  while (performance.now() < warmUpEnd) {
    round();
    rounds++;
  }
  const perSample = Math.max(1, Math.round((rounds * SAMPLE_MS) / WARM_UP_MS));
  const samples: number[] = [];
  for (let i = 0; i < SAMPLES; i++) {
    const start = performance.now();
    for (let j = 0; j < perSample; j++) round();
    samples.push(((performance.now() - start) * 1e6) / (perSample * count));
  }
  samples.sort((a, b) => a - b);
  const best = samples[0]!.toFixed(1);
  const median = samples[SAMPLES / 2]!.toFixed(1);
  console.log(
    `${name.padEnd(52)} best ${best.padStart(8)}  median ${median.padStart(8)} ns/message`,
  );
}

/** A message of `type` with `body` behind its header. */
export function message(type: string, body: Buffer | string): Buffer {
  const bytes = typeof body === 'string' ? Buffer.from(body, 'latin1') : body;
  const header = Buffer.alloc(5);
  header.write(type, 'latin1');
  header.writeInt32BE(4 + bytes.length, 1);
  return Buffer.concat([header, bytes]);
}
