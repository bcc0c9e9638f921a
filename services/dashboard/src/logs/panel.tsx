// The log of a job: a list of any length of which only the visible lines exist, searched by the server, followed live.
import { type RefObject, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Job, JobLine } from "../api/types.ts";
import { count, plural } from "../format.ts";
import { Symbol } from "../ui/icons.tsx";
import { useShortcuts } from "../ui/keys.ts";
import { isTemporary } from "../api/problem.ts";
import { ErrorNote } from "../ui/notes.tsx";
import { MAX_ROWS, PAGE_LINES, pageOf, WholeLog } from "./log.ts";
import { Matches } from "./matches.tsx";
import { fetchLines, fileOf, type LogView, queryOf } from "./query.ts";
import { NoLines, Rows } from "./rows.tsx";

const RETRY_MS = 2000;

/** `lines`: a callback that gets each line of the live stream. `onStart`: the stream may begin after this line. */
export function LogPanel({
  job,
  view,
  onView,
  lines,
  onStart,
}: {
  job: Job;
  view: LogView;
  onView: (next: Partial<LogView>) => void;
  lines: RefObject<((lines: JobLine[]) => void) | null>;
  onStart: (after: number) => void;
}) {
  const { rank, attempt, stream, search, order } = view;
  const query = useMemo(() => queryOf({ rank, attempt, stream, search, order }), [rank, attempt, stream, search, order]);
  const filtered = Object.keys(query).length > 0;
  const field = useRef<HTMLInputElement>(null);
  useShortcuts({ "/": () => field.current?.focus() });
  return (
    <div className="log-panel">
      <LogTools job={job} view={view} onView={onView} field={field} />
      {filtered ? (
        <Matches key={JSON.stringify(query)} job={job} query={query} view={view} onView={onView} lines={lines} onStart={onStart} />
      ) : (
        <Whole job={job} view={view} onView={onView} lines={lines} onStart={onStart} />
      )}
    </div>
  );
}

function LogTools({ job, view, onView, field }: { job: Job; view: LogView; onView: (next: Partial<LogView>) => void; field: RefObject<HTMLInputElement | null> }) {
  const learners = Object.keys(job.attempt.placement).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return (
    <div className="tools" role="toolbar" aria-label="Log">
      <form
        className="filter-form"
        onSubmit={(event) => {
          event.preventDefault();
          onView({ search: String(new FormData(event.currentTarget).get("search") ?? "") || undefined, line: undefined });
        }}
      >
        <Symbol name="search" />
        <input key={view.search} ref={field} name="search" defaultValue={view.search} placeholder="Search, a regular expression" aria-label="Search the log" spellCheck={false} enterKeyHint="search" />
        {view.search ? (
          <button type="button" className="quiet icon-only" aria-label="Clear the search" onClick={() => onView({ search: undefined })}>
            <Symbol name="close" size={11} />
          </button>
        ) : (
          <kbd aria-hidden="true">/</kbd>
        )}
      </form>
      {learners.length > 1 ? (
        <select aria-label="Learner" value={view.rank ?? ""} onChange={(event) => onView({ rank: event.target.value || undefined, line: undefined })}>
          <option value="">All learners</option>
          {learners.map((learner) => (
            <option key={learner}>{learner}</option>
          ))}
        </select>
      ) : null}
      {learners.length > 1 ? (
        <select aria-label="Order" value={view.order ?? ""} onChange={(event) => onView({ order: event.target.value || undefined })}>
          <option value="">As stored</option>
          <option value="time">Merged by time</option>
        </select>
      ) : null}
      {job.attempt.number > 1 ? (
        <select aria-label="Attempt" value={view.attempt ?? ""} onChange={(event) => onView({ attempt: event.target.value || undefined, line: undefined })}>
          <option value="">All attempts</option>
          {Array.from({ length: job.attempt.number }, (_, index) => (
            <option key={index} value={index + 1}>
              Attempt {index + 1}
            </option>
          ))}
        </select>
      ) : null}
      <select aria-label="Stream" value={view.stream ?? ""} onChange={(event) => onView({ stream: event.target.value || undefined, line: undefined })}>
        <option value="">All streams</option>
        <option>stdout</option>
        <option>stderr</option>
      </select>
      <a className="button quiet compact" href={fileOf(job.id, queryOf(view))} download>
        <Symbol name="download" /> Download
      </a>
    </div>
  );
}

interface BodyProps {
  job: Job;
  view: LogView;
  onView: (next: Partial<LogView>) => void;
  lines: RefObject<((lines: JobLine[]) => void) | null>;
  onStart: (after: number) => void;
}

/** All lines, by their number. */
function Whole({ job, view, onView, lines, onStart }: BodyProps) {
  const [log, setLog] = useState<WholeLog | null>(null);
  const [error, setError] = useState<unknown>(null);
  /** Pages that were requested and are not here: an answer is on its way, or a pause after a failure. */
  const loading = useRef(new Set<number>());
  /** Pages of them whose answers are in the next log that is drawn. Until then the rows still see the log without them. */
  const arrived = useRef(new Set<number>());
  const [, setRetries] = useState(0);
  const marked = Number(view.line) || 0;
  const [base, setBase] = useState<number | null>(null);

  useEffect(() => {
    const controller = new AbortController();
    let retry: ReturnType<typeof setTimeout> | undefined;
    const begin = (): void => {
      fetchLines(job.id, { tail: PAGE_LINES }, controller.signal)
        .then((page) => {
          const last = page.lines.at(-1)?.seq ?? 0;
          setError(null);
          setLog((now) => (now ?? new WholeLog()).with(page.lines, last)); // the stream may have brought later ones
          onStart(last);
        })
        .catch((failure: unknown) => {
          if (controller.signal.aborted) return;
          setError(failure);
          if (isTemporary(failure)) retry = setTimeout(begin, RETRY_MS);
        });
    };
    begin();
    lines.current = (fresh) => setLog((now) => (now ?? new WholeLog()).with(fresh));
    return () => {
      controller.abort();
      clearTimeout(retry);
      lines.current = null;
    };
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [job.id]);

  useLayoutEffect(() => {
    for (const page of arrived.current) loading.current.delete(page); // before the rows ask for what is missing now
    arrived.current.clear();
  }, [log]);

  const load = useCallback(
    (from: number, to: number) => {
      if (!log) return;
      for (let page = pageOf(from); page <= pageOf(to); page += 1) {
        const first = log.missing(page);
        if (first === null || loading.current.has(page)) continue;
        loading.current.add(page);
        fetchLines(job.id, { after: first - 1, limit: (page + 1) * PAGE_LINES - first + 1 })
          .then((answer) => {
            setError(null);
            if (answer.lines.length === 0) {
              loading.current.delete(page);
              return;
            }
            arrived.current.add(page);
            setLog((now) => now?.with(answer.lines) ?? null);
          })
          .catch((failure: unknown) => {
            setError(failure);
            // A final answer is not requested again: its page stays here.
            if (!isTemporary(failure)) return;
            setTimeout(() => {
              loading.current.delete(page);
              setRetries((retries) => retries + 1); // the rows request it again, if it is still on the screen
            }, RETRY_MS);
          });
      }
    },
    [job.id, log],
  );

  if (error && !log) return <ErrorNote error={error} />;
  if (!log) return null;
  if (log.total === 0) return <NoLines job={job} />;
  const latestBase = Math.max(0, log.total - MAX_ROWS);
  const first = base ?? (marked > 0 && marked <= latestBase ? Math.max(0, marked - MAX_ROWS / 2) : latestBase);
  const rows = Math.min(MAX_ROWS, log.total - first);
  return (
    <>
      {error ? <ErrorNote error={error} /> : null}
      {first > 0 ? (
        <p className="note">
          Lines {count(first + 1)} to {count(first + rows)} of {count(log.total)}.
          <button type="button" className="quiet" onClick={() => setBase(Math.max(0, first - MAX_ROWS))}>
            Earlier lines
          </button>
        </p>
      ) : null}
      <Rows
        key={first}
        rows={rows}
        seqOf={(row) => first + row + 1}
        rowOf={(seq) => seq - first - 1}
        lineOf={(row) => log.line(first + row + 1)}
        onRange={(from, to) => load(first + from + 1, first + to + 1)}
        marked={marked}
        onMark={(seq) => onView({ line: String(seq) })}
        job={job}
        foot={plural(log.total, "line")}
      />
    </>
  );
}
