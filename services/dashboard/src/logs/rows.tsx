// The visible lines of a log, in a box that scrolls.
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { Job, JobLine } from "../api/types.ts";
import { absolute, clock, count, plural } from "../format.ts";
import { Symbol } from "../ui/icons.tsx";
import { Empty } from "../ui/notes.tsx";
import { drawn, withoutControls } from "./ansi.ts";

const ROW_PX = 18;

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

export function Rows({ rows, seqOf, rowOf, lineOf, onRange, marked, onMark, job, foot }: RowsProps) {
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
  // Lines that were added before the first one do not move what the reader sees.
  const firstSeq = rows > 0 ? seqOf(0) : 0;
  const before = useRef(firstSeq);
  useLayoutEffect(() => {
    const added = before.current === firstSeq ? 0 : rowOf(before.current);
    before.current = firstSeq;
    if (added > 0 && !follows && box.current) box.current.scrollTop += added * ROW_PX;
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [firstSeq]);
  const wanted = useRef(marked);
  useEffect(() => {
    const row = wanted.current > 0 ? rowOf(wanted.current) : -1;
    if (row < 0) return;
    wanted.current = 0; // once: later the reader scrolls
    virtual.scrollToIndex(row, { align: "center" });
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [rows]);

  const several = job.learners > 1;
  const markedRow = marked > 0 ? rowOf(marked) : -1;
  const open = markedRow >= 0 ? lineOf(markedRow) : undefined;
  const width = String(Math.max(seqOf(0), seqOf(rows - 1))).length;
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
          <pre tabIndex={0}>{withoutControls(open.text)}</pre>
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
      <button type="button" tabIndex={-1} className="log-seq" style={{ minWidth: `calc(${width}ch + 18px)` }} onClick={() => onMark(seq)} aria-label={`Line ${seq}`}>
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
          <Text text={line.text} />
        </>
      ) : (
        <span className="faint">…</span>
      )}
    </div>
  );
});

function Text({ text }: { text: string }) {
  const { spans, hidden } = drawn(text);
  return (
    <span className="log-text">
      {spans.map((span, index) => (
        // oxlint-disable-next-line react/no-array-index-key
        <span key={index} className={span.className}>
          {span.text}
        </span>
      ))}
      {hidden > 0 ? <span className="faint"> … {plural(hidden, "more character")}: click the line's number, or download the log</span> : null}
    </span>
  );
}

export function NoLines({ job }: { job: Job }) {
  return (
    <Empty title="No lines yet">
      <p>{job.attempt.number === 0 ? "The log begins once the learners start." : "What the learners print is shown here as it comes."}</p>
    </Empty>
  );
}
