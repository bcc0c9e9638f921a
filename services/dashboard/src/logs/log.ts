// The lines of a log that are loaded. Without a filter, line n of the log is row n, so that a log of any length can be
// scrolled without reading it; with a filter, the rows are the last lines that match.
import type { JobLine } from "../api/types.ts";

export const PAGE_LINES = 500;
/** Browsers cannot scroll over more: their boxes have a largest height. */
export const MAX_ROWS = 900_000;
const KEPT_PAGES = 60;
/** Those that the reader sees, however long their lines are. */
const LEAST_PAGES = 3;
/** Of all pages together: a page of the longest lines has eight million. */
const KEPT_CHARACTERS = 40_000_000;

export class WholeLog {
  readonly total: number;
  private readonly pages: ReadonlyMap<number, readonly JobLine[]>;

  constructor(total = 0, pages: ReadonlyMap<number, readonly JobLine[]> = new Map()) {
    this.total = total;
    this.pages = pages;
  }

  line(seq: number): JobLine | undefined {
    return this.pages.get(pageOf(seq))?.find((line) => line.seq === seq);
  }

  /** The number of the page's first line that is not here; null: it holds every line that it will ever have, or every
   * line that there is. An answer with long lines has only some of a page.
   */
  missing(page: number): number | null {
    let seq = page * PAGE_LINES + 1;
    for (const line of this.pages.get(page) ?? []) {
      if (line.seq !== seq) break;
      seq += 1;
    }
    return seq > Math.min(this.total, (page + 1) * PAGE_LINES) ? null : seq;
  }

  with(lines: readonly JobLine[], total = 0): WholeLog {
    const pages = new Map(this.pages);
    const changed = new Map<number, Map<number, JobLine>>();
    for (const line of lines) {
      const page = pageOf(line.seq);
      let merged = changed.get(page);
      if (!merged) {
        merged = new Map((pages.get(page) ?? []).map((known) => [known.seq, known]));
        changed.set(page, merged);
      }
      merged.set(line.seq, line);
    }
    for (const [page, merged] of changed) {
      pages.delete(page); // to the end: the map is in the order of use
      pages.set(page, [...merged.values()].sort((a, b) => a.seq - b.seq));
    }
    let characters = 0;
    for (const [kept, page] of [...pages.keys()].toReversed().entries()) {
      characters += lengthOf(pages.get(page) ?? []);
      if (kept >= KEPT_PAGES || (kept >= LEAST_PAGES && characters > KEPT_CHARACTERS)) pages.delete(page);
    }
    return new WholeLog(Math.max(this.total, total, lines.at(-1)?.seq ?? 0), pages);
  }
}

export const pageOf = (seq: number): number => Math.floor((seq - 1) / PAGE_LINES);

const lengthOf = (lines: readonly JobLine[]): number => lines.reduce((sum, line) => sum + line.text.length, 0);

/** The last lines, as many as a page of the browser keeps while new ones come. `before`: every line that is dropped has a
 * lower number than this; null: none is dropped.
 */
export function newest(lines: readonly JobLine[], most: number): { lines: JobLine[]; before: number | null } {
  let characters = 0;
  let first = lines.length;
  while (first > Math.max(0, lines.length - most)) {
    characters += lines[first - 1]?.text.length ?? 0;
    if (characters > KEPT_CHARACTERS) break;
    first -= 1;
  }
  // In the order of time, the last line that is dropped does not always have the highest number.
  const before = first === 0 ? null : 1 + lines.slice(0, first).reduce((seq, line) => Math.max(seq, line.seq), 0);
  return { lines: lines.slice(first), before };
}
