// What the live stream says of one job, written into the answers that the screen already has.
import { type InfiniteData, type QueryClient, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { useLive } from "../api/live.ts";
import { isTemporary } from "../api/problem.ts";
import { curvesQuery, explainQuery, historyQuery, jobQuery, progressQuery, readAgain } from "../api/queries.ts";
import { isLive, type Job, type JobEvent, type JobLine, type JobPoint } from "../api/types.ts";
import { type Curve, curveOf, withPoints } from "../charts/series.ts";
import { Received } from "./received.ts";

const PROGRESS_MS = 3000;
const PLACE_MS = 3000;
const CURVES_MS = 2000;
const DRAWN_EVERY_MS = 250;
/** More points that wait to be drawn, as on a hidden page, are dropped, and the curves are read again instead. */
const MOST_WAITING = 10_000;

export type LineListener = (lines: JobLine[]) => void;

export interface LiveJob {
  job: ReturnType<typeof useQuery<Job>>;
  history: JobEvent[];
  curves: ReadonlyMap<string, Curve>;
  curvesError: unknown;
  curvesPending: boolean;
  /** What of the job cannot be read now, in words. */
  damages: string[];
}

interface Grown {
  from: ReadonlyMap<string, Curve>;
  curves: ReadonlyMap<string, Curve>;
}

/** The job, and everything of it that changes while one looks. `onLines`: also follow the log, after line `linesAfter`. */
export function useLiveJob(id: string, log: { after: number; onLines: LineListener } | null): LiveJob {
  const queries = useQueryClient();
  // The curves first: they take longest, and the route has requested them already. A job that a list has shown is drawn
  // from there at once, meanwhile.
  const series = useQuery({
    ...curvesQuery(id),
    // Nothing else reads them again once the platform answers.
    refetchInterval: (query) => (couldNotBeRead(query) ? CURVES_MS : false),
  });
  const job = useQuery({ ...jobQuery(id), placeholderData: () => listed(queries, id) });
  const history = useQuery(historyQuery(id));
  const live = job.data !== undefined && isLive(job.data.status);
  useQuery({ ...progressQuery(id), refetchInterval: (query) => (live || couldNotBeRead(query) ? PROGRESS_MS : false) });

  const read = useMemo(() => new Map((series.data?.series ?? []).map((part) => curveOf(part)).map((curve) => [curve.key, curve])), [series.data]);
  // The curves with the points of the stream. Those of an earlier answer are dropped: the next answer has their points.
  const [grown, setGrown] = useState<Grown | null>(null);
  const curves = grown?.from === read ? grown.curves : read;
  const waiting = useRef<JobPoint[] | null>([]);
  const { current: received } = useRef(new Received());
  const lastLine = useRef(0);
  const { refetch } = series;
  const through = series.data?.through;
  useEffect(() => {
    waiting.current = [];
    received.answered(through);
    const timer = setInterval(() => {
      const points = waiting.current;
      if (points?.length === 0 || document.hidden) return;
      waiting.current = [];
      if (points === null) void refetch();
      else setGrown((now) => ({ from: read, curves: withPoints(now?.from === read ? now.curves : read, points) }));
    }, DRAWN_EVERY_MS);
    return () => clearInterval(timer);
  }, [read, received, refetch, through]);

  // The stream begins where the answers end, or what it has brought since. It is opened anew only for other parts or answers.
  const linesAfter = useRef(0);
  linesAfter.current = log?.after ?? 0;
  const parts = series.isPending ? null : `${id}|${series.data ? "p" : ""}|${log ? "l" : ""}`;
  const [stream, setStream] = useState<string | null>(null);
  useEffect(() => {
    if (parts === null) return setStream(null);
    const words = new URLSearchParams({ job: id });
    if (parts.includes("|p|")) words.append("points", received.last === undefined ? id : `${id}:${received.last}`);
    if (parts.endsWith("|l")) words.append("lines", `${id}:${Math.max(linesAfter.current, lastLine.current)}`);
    return setStream(words.toString());
  }, [parts, id, received, series.dataUpdatedAt]);

  const [damaged, setDamaged] = useState<ReadonlyMap<string, string>>(new Map());
  const sound = (part: string): void =>
    setDamaged((now) => (now.has(part) ? new Map([...now].filter(([other]) => other !== part)) : now));

  useLive(stream, {
    onDamaged: (of, part, message) => of === id && setDamaged((now) => new Map(now).set(part, message)),
    onStart: (of, part, seq) => {
      if (of !== id) return;
      sound(part);
      if (part === "points") received.begun(seq);
    },
    onReady: (resumed) => {
      if (resumed) return;
      for (const part of ["job", "history", "explain", "progress"]) void readAgain(queries, [part, id]);
    },
    onJob: (next) => {
      if (next.id !== id) return;
      sound("job");
      const before = queries.getQueryData(jobQuery(id).queryKey);
      if (before && before.updated > next.updated) return;
      queries.setQueryData(jobQuery(id).queryKey, (now) => ({ ...(now ?? next), ...next, ...(now?.spec ? { spec: now.spec } : {}) }));
      if (before?.status !== next.status || before?.pending_reason !== next.pending_reason) {
        for (const part of ["explain", "progress"]) void readAgain(queries, [part, id]);
        if (before && !isLive(next.status)) void readAgain(queries, ["artifacts", id]);
      }
    },
    onLeft: (of) => {
      // Deleted: the cached job is dropped, too. It would stay on the screen while it cannot be read.
      if (of === id) void queries.resetQueries({ queryKey: jobQuery(id).queryKey });
    },
    onHistory: (_, event) =>
      queries.setQueryData(historyQuery(id).queryKey, (now) =>
        now?.some((other) => other.seq === event.seq) ? now : [...(now ?? []), event],
      ),
    onPoints: (of, points) => {
      if (of !== id) return;
      const fresh = received.fresh(points);
      waiting.current?.push(...fresh);
      if ((waiting.current?.length ?? 0) > MOST_WAITING) waiting.current = null;
    },
    onLines: (of, lines) => {
      if (of !== id) return;
      log?.onLines(lines);
      lastLine.current = Math.max(lastLine.current, lines.at(-1)?.seq ?? 0);
    },
  });
  return {
    job: job as LiveJob["job"],
    history: history.data ?? [],
    curves,
    curvesError: series.error,
    curvesPending: series.isPending,
    damages: [...new Set(damaged.values())],
  };
}

/** It may be older than the last change of the job. */
const couldNotBeRead = ({ state }: { state: { status: string; error: unknown } }): boolean => state.status === "error" && isTemporary(state.error);

function listed(queries: QueryClient, id: string): Job | undefined {
  for (const [, data] of queries.getQueriesData<InfiniteData<{ jobs: Job[] }>>({ queryKey: ["jobs"] })) {
    const job = data?.pages.flatMap((page) => page.jobs).find((other) => other.id === id);
    if (job) return job;
  }
  return undefined;
}

/** The place in the queue depends on other jobs, so no change of this job tells it. */
export const useExplanation = (id: string, status: string | undefined) =>
  useQuery({ ...explainQuery(id), refetchInterval: (query) => (status === "QUEUED" || couldNotBeRead(query) ? PLACE_MS : false) });
export const useProgress = (id: string) => useQuery(progressQuery(id));
