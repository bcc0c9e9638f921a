// Requests for single metrics that are made within a moment become one request for several: the server reads the jobs
// once for all of them.

/** Metrics of one request: few enough that the first charts are seen soon. */
const MOST = 8;
const PAUSE_MS = 20;

interface Waiting<T> {
  name: string;
  resolve: (answer: T) => void;
  reject: (error: unknown) => void;
  signal: AbortSignal;
}

/** A function that reads one metric. `read`: reads several, by name. It is aborted once nobody waits for its answer. */
export function batching<T>(read: (names: string[], signal: AbortSignal) => Promise<ReadonlyMap<string, T>>): (name: string, signal: AbortSignal) => Promise<T> {
  let waiting: Waiting<T>[] = [];
  const send = (batch: readonly Waiting<T>[]): void => {
    const controller = new AbortController();
    for (const { signal } of batch) signal.addEventListener("abort", () => batch.every((other) => other.signal.aborted) && controller.abort());
    read([...new Set(batch.map((entry) => entry.name))], controller.signal)
      .then((answers) => {
        for (const { name, resolve, reject } of batch) {
          const answer = answers.get(name);
          if (answer === undefined) reject(new Error(`no answer for ${name}`));
          else resolve(answer);
        }
      })
      .catch((error: unknown) => {
        for (const { reject } of batch) reject(error);
      });
  };
  const flush = (): void => {
    const open = waiting.filter((entry) => !entry.signal.aborted);
    waiting = [];
    for (let first = 0; first < open.length; first += MOST) send(open.slice(first, first + MOST));
  };
  return (name, signal) =>
    new Promise<T>((resolve, reject) => {
      if (waiting.length === 0) setTimeout(flush, PAUSE_MS);
      waiting.push({ name, resolve, reject, signal });
    });
}
