// The lines of a log that are loaded. Without a filter, line n of the log is row n, so that a log of any length can be
// scrolled without reading it; with a filter, the rows are the last lines that match.
import type { JobLine } from "../api/types.ts";

export const PAGE_LINES = 500;
/** Browsers cannot scroll over more: their boxes have a largest height. */
export const MAX_ROWS = 900_000;
const KEPT_PAGES = 60;

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

  /** The page holds every line that it will ever have, or every line that there is. */
  complete(page: number): boolean {
    const lines = this.pages.get(page);
    if (!lines) return false;
    return (lines.at(-1)?.seq ?? 0) >= Math.min(this.total, (page + 1) * PAGE_LINES);
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
    for (const page of pages.keys()) {
      if (pages.size <= KEPT_PAGES) break;
      pages.delete(page);
    }
    return new WholeLog(Math.max(this.total, total, lines.at(-1)?.seq ?? 0), pages);
  }
}

export const pageOf = (seq: number): number => Math.floor((seq - 1) / PAGE_LINES);
