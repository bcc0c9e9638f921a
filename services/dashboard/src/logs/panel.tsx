// The log of a job: a list of any length of which only the visible lines exist, searched by the server, followed live.
import { useQueryClient } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, type RefObject, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { client, dataOf } from "../api/client.ts";
import type { Job, JobLine } from "../api/types.ts";
import { absolute, clock, count, plural } from "../format.ts";
import { splitLearner } from "../job/learners.tsx";
import { Symbol } from "../ui/icons.tsx";
import { useShortcuts } from "../ui/keys.ts";
import { Empty, ErrorNote } from "../ui/notes.tsx";
import { sayError } from "../ui/toast.tsx";
import { spans } from "./ansi.ts";
import { MAX_ROWS, PAGE_LINES, pageOf, WholeLog } from "./log.ts";

const ROW_PX = 18;
const MATCHES = 5000;
const REFRESH_MS = 1000;
const DOWNLOAD_PAGE = 10_000;

export interface LogView {
  rank?: string | undefined;
  attempt?: string | undefined;
  stream?: string | undefined;
  search?: string | undefined;
  line?: string | undefined;
}

interface Query {
  role?: string;
  rank?: number;
  attempt?: number;
  stream?: string;
  search?: string;
}

function queryOf(view: LogView): Query {
  const [role, rank] = view.rank ? splitLearner(view.rank) : ["", ""];
  return {
    ...(view.rank ? { role, rank: Number(rank) } : {}),
    ...(view.attempt ? { attempt: Number(view.attempt) } : {}),
    ...(view.stream ? { stream: view.stream } : {}),
    ...(view.search ? { search: view.search } : {}),
  };
}

const fetchLines = async (id: string, query: Query & { after?: number; limit?: number; tail?: number }, signal?: AbortSignal) =>
  dataOf(await client.GET("/v1/jobs/{job_id}/logs", { params: { path: { job_id: id }, query }, ...(signal ? { signal } : {}) }));

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
  const { rank, attempt, stream, search } = view;
  const query = useMemo(() => queryOf({ rank, attempt, stream, search }), [rank, attempt, stream, search]);
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
      <button type="button" className="button quiet compact" onClick={() => void download(job, queryOf(view))}>
        <Symbol name="download" /> Download
      </button>
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
  const queries = useQueryClient();
  const [log, setLog] = useState<WholeLog | null>(null);
  const [error, setError] = useState<unknown>(null);
  const loading = useRef(new Set<number>());
  const marked = Number(view.line) || 0;
  const [base, setBase] = useState<number | null>(null);

  useEffect(() => {
    const controller = new AbortController();
    fetchLines(job.id, { tail: PAGE_LINES }, controller.signal)
      .then((page) => {
        const last = page.lines.at(-1)?.seq ?? 0;
        setLog(new WholeLog().with(page.lines, last));
        onStart(last);
      })
      .catch((failure: unknown) => controller.signal.aborted || setError(failure));
    lines.current = (fresh) => setLog((now) => (now ?? new WholeLog()).with(fresh));
    return () => {
      controller.abort();
      lines.current = null;
    };
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [job.id, queries]);

  const load = useCallback(
    (from: number, to: number) => {
      if (!log) return;
      for (let page = pageOf(from); page <= pageOf(to); page += 1) {
        if (log.complete(page) || loading.current.has(page)) continue;
        loading.current.add(page);
        fetchLines(job.id, { after: page * PAGE_LINES, limit: PAGE_LINES })
          .then((answer) => setLog((now) => now?.with(answer.lines) ?? null))
          .catch(setError)
          .finally(() => loading.current.delete(page));
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

/** The last lines that match a filter, as the server finds them. */
function Matches({ job, query, view, onView, lines, onStart }: BodyProps & { query: Query }) {
  const [found, setFound] = useState<JobLine[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const last = useRef(0);

  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | null = null;
    const more = (): void => {
      timer = null;
      fetchLines(job.id, { ...query, after: last.current, limit: 1000 }, controller.signal)
        .then((page) => {
          last.current = Math.max(last.current, page.next, page.lines.at(-1)?.seq ?? 0);
          if (page.lines.length > 0) setFound((now) => [...(now ?? []), ...page.lines].slice(-MATCHES * 2));
        })
        .catch((failure: unknown) => controller.signal.aborted || setError(failure));
    };
    fetchLines(job.id, { ...query, tail: MATCHES }, controller.signal)
      .then((page) => {
        last.current = page.lines.at(-1)?.seq ?? 0;
        setFound(page.lines);
        onStart(last.current);
        lines.current = () => {
          timer ??= setTimeout(more, REFRESH_MS);
        };
      })
      .catch((failure: unknown) => controller.signal.aborted || setError(failure));
    return () => {
      controller.abort();
      if (timer !== null) clearTimeout(timer);
      lines.current = null;
    };
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [job.id, query]);

  if (error) return <ErrorNote error={error} />;
  if (!found) return <p className="loading" role="status">Searching …</p>;
  if (found.length === 0) return <Empty title="No line matches" />;
  return (
    <Rows
      rows={found.length}
      seqOf={(row) => found[row]?.seq ?? 0}
      rowOf={(seq) => found.findIndex((line) => line.seq === seq)}
      lineOf={(row) => found[row]}
      marked={Number(view.line) || 0}
      onMark={(seq) => onView({ line: String(seq) })}
      job={job}
      foot={found.length >= MATCHES ? `the last ${count(found.length)} lines that match` : `${plural(found.length, "line")} match${found.length === 1 ? "es" : ""}`}
    />
  );
}

interface RowsProps {
  rows: number;
  seqOf: (row: number) => number;
  rowOf: (seq: number) => number;
  lineOf: (row: number) => JobLine | undefined;
  onRange?: (from: number, to: number) => void;
  marked: number;
  onMark: (seq: number) => void;
  job: Job;
  foot: string;
}

function Rows({ rows, seqOf, rowOf, lineOf, onRange, marked, onMark, job, foot }: RowsProps) {
  const box = useRef<HTMLDivElement>(null);
  const [follows, setFollows] = useState(marked === 0);
  const virtual = useVirtualizer({ count: rows, getScrollElement: () => box.current, estimateSize: () => ROW_PX, overscan: 30 });
  const items = virtual.getVirtualItems();
  const from = items[0]?.index ?? 0;
  const to = items.at(-1)?.index ?? 0;

  useEffect(() => {
    if (items.length > 0) onRange?.(from, to);
  }, [from, to, items.length, onRange]);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [follows, rows]);
  useEffect(() => {
    const row = marked > 0 ? rowOf(marked) : -1;
    if (row >= 0) virtual.scrollToIndex(row, { align: "center" });
    // once: later the reader scrolls
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, []);

  const several = job.learners > 1;
  const markedRow = marked > 0 ? rowOf(marked) : -1;
  const open = markedRow >= 0 ? lineOf(markedRow) : undefined;
  const width = String(seqOf(rows - 1)).length;
  return (
    <>
      <div
        className="log"
        ref={box}
        // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
        tabIndex={0}
        role="region"
        aria-label={`Log, ${foot}`}
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
          setFollows(scrollHeight - scrollTop - clientHeight < ROW_PX);
        }}
      >
        <div className="log-rows" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => (
            <Row
              key={item.key}
              top={item.start}
              seq={seqOf(item.index)}
              line={lineOf(item.index)}
              width={width}
              several={several}
              marked={seqOf(item.index) === marked}
              onMark={onMark}
            />
          ))}
        </div>
      </div>
      {open ? (
        <section className="log-open" aria-label={`Line ${open.seq}`}>
          <p className="faint">
            Line {count(open.seq)} · {absolute(open.time)} · {open.role}-{open.rank} · {open.stream} · attempt {open.attempt}
          </p>
          <pre tabIndex={0}>{open.text}</pre>
        </section>
      ) : null}
      <p className="log-foot">
        <span>{foot}</span>
        {follows ? null : (
          <button type="button" className="button compact" onClick={() => setFollows(true)}>
            <Symbol name="down" size={11} /> Follow the end
          </button>
        )}
      </p>
    </>
  );
}

const Row = memo(function Row({
  top,
  seq,
  line,
  width,
  several,
  marked,
  onMark,
}: {
  top: number;
  seq: number;
  line: JobLine | undefined;
  width: number;
  several: boolean;
  marked: boolean;
  onMark: (seq: number) => void;
}) {
  return (
    <div className={`log-row${marked ? " marked" : ""}${line?.stream === "stderr" ? " stderr" : ""}`} style={{ transform: `translateY(${top}px)` }}>
      <button type="button" tabIndex={-1} className="log-seq" style={{ minWidth: `${width + 1}ch` }} onClick={() => onMark(seq)} aria-label={`Line ${seq}`}>
        {seq}
      </button>
      {line ? (
        <>
          <span className="log-time" title={absolute(line.time)}>
            {clock(line.time)}
          </span>
          {several ? (
            <span className={`log-rank c${line.rank % 8}`}>
              {line.role}-{line.rank}
            </span>
          ) : null}
          <span className="log-text">
            {spans(line.text).map((span, index) => (
              // oxlint-disable-next-line react/no-array-index-key
              <span key={index} className={span.className}>
                {span.text}
              </span>
            ))}
          </span>
        </>
      ) : (
        <span className="faint">…</span>
      )}
    </div>
  );
});

function NoLines({ job }: { job: Job }) {
  return (
    <Empty title="No lines yet">
      <p>{job.attempt.number === 0 ? "The log begins once the learners start." : "What the learners print is shown here as it comes."}</p>
    </Empty>
  );
}

/** Saves all lines that match, read page by page. */
async function download(job: Job, query: Query): Promise<void> {
  try {
    const parts: string[] = [];
    let after = 0;
    for (let more = true; more; ) {
      const page = await fetchLines(job.id, { ...query, after, limit: DOWNLOAD_PAGE });
      parts.push(page.lines.map((line) => `${line.time} ${line.role}-${line.rank} ${line.stream} ${line.text}\n`).join(""));
      more = page.more && page.next > after;
      after = page.next;
    }
    const url = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `${job.id}.log`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    sayError("The log was not downloaded", error);
  }
}
