// Lines that match a filter, or all lines merged by time: the last ones first, earlier ones as the reader goes back.
import { type RefObject, useEffect, useRef, useState } from "react";
import type { Job, JobLine } from "../api/types.ts";
import { count, plural } from "../format.ts";
import { isTemporary } from "../api/problem.ts";
import { Empty, ErrorNote } from "../ui/notes.tsx";
import { newest } from "./log.ts";
import { fetchLines, type LineQuery, type LogView } from "./query.ts";
import { NoLines, Rows } from "./rows.tsx";

/** Lines that are read at a time. */
const PART = 5000;
/** Lines that a page keeps while new ones come. */
const MOST = 50_000;
const REFRESH_MS = 1000;
const RETRY_MS = 2000;

interface Found {
  lines: JobLine[];
  /** There are lines before these: they are before the line with this number. */
  previous: number | null;
  /** The search goes on, from `previous` backwards. */
  searching: boolean;
}

const NOTHING: Found = { lines: [], previous: null, searching: true };

interface Matching extends Found {
  error: unknown;
  earlier: () => void;
}

/** Reads the last lines, goes on where a search stopped for its time, and adds lines as they come. */
function useMatching(job: Job, query: LineQuery, lines: RefObject<((lines: JobLine[]) => void) | null>, onStart: (after: number) => void): Matching {
  const [found, setFound] = useState(NOTHING);
  const [error, setError] = useState<unknown>(null);
  const go = useRef<() => void>(() => undefined);

  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const { order, ...filter } = query;
    let timer: ReturnType<typeof setTimeout> | null = null;
    let last = 0;
    /** Lines that have come could not be read. */
    let behind = false;
    let before: number | undefined;
    let shown = NOTHING;
    /** Earlier lines are being read. No line is dropped then: it would be missing between those and the ones that are shown. */
    let goesBack = false;
    /** Grows with what the reader has gone back to. */
    let most = MOST;
    let retry: ReturnType<typeof setTimeout> | undefined;
    const show = (change: Partial<Found>): void => {
      shown = { ...shown, ...change };
      setFound(shown);
    };
    const failed = (failure: unknown, again: () => void): void => {
      if (signal.aborted) return;
      setError(failure);
      show({ searching: goesBack });
      if (isTemporary(failure)) retry = setTimeout(again, RETRY_MS);
    };
    const earlier = async (): Promise<void> => {
      setError(null);
      if (goesBack) return; // two readings would each end the time in which no line is dropped
      show({ searching: true });
      goesBack = true;
      try {
        await goBack();
      } finally {
        goesBack = false;
      }
    };
    const goBack = async (): Promise<void> => {
      for (let wanted = PART; ; ) {
        const bounds = before === undefined ? {} : { before };
        let page = await fetchLines(job.id, { ...query, ...bounds, tail: wanted }, signal);
        const { previous, partial } = page;
        const part = [...page.lines];
        while (page.more) {
          page = await fetchLines(job.id, { ...query, ...bounds, after: page.next }, signal); // long lines
          part.push(...page.lines);
        }
        wanted -= part.length;
        before = previous ?? before;
        const searching = partial && wanted > 0;
        const lines = merged(shown.lines, part, order);
        most = Math.max(most, lines.length);
        show({ lines, previous, searching });
        if (!searching) return;
      }
    };
    const added = (part: readonly JobLine[]): Partial<Found> => {
      const all = merged(shown.lines, part, order);
      if (goesBack) return { lines: all };
      const kept = newest(all, most);
      if (kept.before === null) return { lines: all };
      before = kept.before;
      return { lines: kept.lines, previous: before };
    };
    const later = async (): Promise<void> => {
      timer = null;
      for (let more = true; more; ) {
        const page = await fetchLines(job.id, { ...filter, after: last, limit: 1000 }, signal);
        last = Math.max(last, page.next);
        if (page.lines.length > 0) show(added(page.lines));
        ({ more } = page);
      }
      if (behind) setError(null);
      behind = false;
    };
    const begin = async (): Promise<void> => {
      last = (await fetchLines(job.id, { tail: 1 }, signal)).lines.at(-1)?.seq ?? 0;
      onStart(last);
      lines.current = follow;
      go.current();
    };
    const follow = (): void => {
      timer ??= setTimeout(() => {
        void later().catch((failure: unknown) => {
          behind = true;
          failed(failure, follow);
        });
      }, REFRESH_MS);
    };
    go.current = () => void earlier().catch((failure: unknown) => failed(failure, go.current));
    const start = (): void => void begin().catch((failure: unknown) => failed(failure, start));
    start();
    return () => {
      controller.abort();
      if (timer !== null) clearTimeout(timer);
      clearTimeout(retry);
      lines.current = null;
    };
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [job.id, query]);
  return { ...found, error, earlier: () => go.current() };
}

/** Both, each line once, in the order of the query. */
function merged(a: readonly JobLine[], b: readonly JobLine[], order: LineQuery["order"]): JobLine[] {
  const lines = [...new Map([...a, ...b].map((line) => [line.seq, line])).values()];
  if (order !== "time") return lines.sort((left, right) => left.seq - right.seq);
  return lines
    .map((line) => ({ line, ms: Date.parse(line.time) }))
    .sort((left, right) => left.ms - right.ms || left.line.seq - right.line.seq)
    .map(({ line }) => line);
}

export function Matches({
  job,
  query,
  view,
  onView,
  lines,
  onStart,
}: {
  job: Job;
  query: LineQuery;
  view: LogView;
  onView: (next: Partial<LogView>) => void;
  lines: RefObject<((lines: JobLine[]) => void) | null>;
  onStart: (after: number) => void;
}) {
  const matching = useMatching(job, query, lines, onStart);
  const { lines: found, previous, searching, error } = matching;
  const marked = Number(view.line) || 0;
  const rowOf = (seq: number): number => found.findIndex((line) => line.seq === seq);
  const whole = Object.keys(query).every((name) => name === "order");
  const what = whole ? "lines" : "matches";
  const foot = whole ? `${plural(found.length, "line")}, merged by time` : `${plural(found.length, "line")} match${found.length === 1 ? "es" : ""}`;
  return (
    <>
      {error ? <ErrorNote error={error} retry={matching.earlier} /> : null}
      {searching ? (
        <p className="loading" role="status">
          {previous === null ? "Searching …" : `The search takes long: it is at line ${count(previous)} and goes on. ${plural(found.length, "line")} so far.`}
        </p>
      ) : null}
      {!searching && previous !== null ? (
        <p className="note">
          Earlier {what} are not shown.
          <button type="button" className="quiet" onClick={matching.earlier}>
            Earlier {what}
          </button>
        </p>
      ) : null}
      {!searching && marked > 0 && found.length > 0 && rowOf(marked) < 0 ? (
        <p className="note">
          Line {count(marked)} is not among these lines.
          <button
            type="button"
            className="quiet"
            onClick={() => onView({ rank: undefined, attempt: undefined, stream: undefined, search: undefined, order: undefined })}
          >
            Show it in the whole log
          </button>
        </p>
      ) : null}
      {found.length > 0 ? (
        <Rows
          rows={found.length}
          seqOf={(row) => found[row]?.seq ?? 0}
          rowOf={rowOf}
          lineOf={(row) => found[row]}
          marked={marked}
          onMark={(seq) => onView({ line: String(seq) })}
          job={job}
          foot={foot}
        />
      ) : null}
      {found.length === 0 && !searching && !error ? whole ? <NoLines job={job} /> : <Empty title="No line matches" /> : null}
    </>
  );
}
