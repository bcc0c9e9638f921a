// The curves of a job: one chart for each metric, all with the same x axis and the same window.
import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef } from "react";
import { seriesQuery, type SeriesWindow } from "../api/queries.ts";
import { isLive, type Job, type JobSeries } from "../api/types.ts";
import { Chart, type Line } from "../charts/chart.tsx";
import { commonContext, type Curve, curveOf, labels, smoothed, type XKind, xOf } from "../charts/series.ts";
import { msOf } from "../format.ts";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";

export interface CurveView {
  x?: string | undefined;
  log?: string | undefined;
  smooth?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  old?: string | undefined;
}

const OLD_ATTEMPTS = 3;
const DETAIL_MS = 2000;

export function CurveTools({ view, onView, older, zooms }: { view: CurveView; onView: (next: Partial<CurveView>) => void; older?: boolean; zooms?: boolean }) {
  const weight = Number(view.smooth ?? 0) || 0;
  return (
    <div className="tools" role="toolbar" aria-label="Curves">
      <div className="segments" role="group" aria-label="Horizontal axis">
        {(
          [
            ["step", "Step"],
            ["elapsed", "Time since start"],
            ["time", "Clock"],
          ] as const
        ).map(([kind, label]) => (
          <button key={kind} type="button" aria-pressed={xKindOf(view) === kind} onClick={() => onView({ x: kind === "step" ? undefined : kind, from: undefined, to: undefined })}>
            {label}
          </button>
        ))}
      </div>
      <label className="check-label">
        <input type="checkbox" checked={view.log === "1"} onChange={(event) => onView({ log: event.target.checked ? "1" : undefined })} /> Log scale
      </label>
      <label className="check-label">
        Smoothing
        <input type="range" min={0} max={0.99} step={0.01} value={weight} onChange={(event) => onView({ smooth: event.target.value === "0" ? undefined : event.target.value })} />
        <output>{weight ? weight.toFixed(2) : "off"}</output>
      </label>
      {older ? (
        <label className="check-label">
          <input type="checkbox" checked={view.old === "1"} onChange={(event) => onView({ old: event.target.checked ? "1" : undefined })} /> Older attempts
        </label>
      ) : null}
      {zooms ? <span className="faint wide-only">Drag over a chart to zoom, double-click to reset</span> : null}
    </div>
  );
}

export const xKindOf = (view: CurveView): XKind => (view.x === "time" || view.x === "elapsed" ? view.x : "step");

export function zoomOf(view: CurveView): readonly [number, number] | null {
  const from = Number(view.from);
  const to = Number(view.to);
  return view.from && view.to && Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null;
}

/** The window of a zoom as the API's parameters. */
export function windowOf(zoom: readonly [number, number] | null, kind: XKind, startMs: number): SeriesWindow | null {
  if (!zoom) return null;
  if (kind === "step") return { fromStep: Math.max(0, Math.floor(zoom[0])), toStep: Math.max(0, Math.ceil(zoom[1])) };
  const offset = kind === "elapsed" ? startMs : 0;
  const time = (seconds: number): string => new Date(seconds * 1000 + offset).toISOString();
  return { since: time(zoom[0]), until: time(zoom[1]) };
}

export function Curves({
  job,
  curves,
  error,
  pending,
  view,
  onView,
}: {
  job: Job;
  curves: ReadonlyMap<string, Curve>;
  error: unknown;
  pending: boolean;
  view: CurveView;
  onView: (next: Partial<CurveView>) => void;
}) {
  const kind = xKindOf(view);
  const { from, to } = view;
  const zoom = useMemo(() => zoomOf({ from, to }), [from, to]);
  const weight = Number(view.smooth ?? 0) || 0;
  const startMs = msOf(job.attempt.started) || msOf(job.created);
  const numbers = useMemo(() => {
    const latest = job.attempt.number;
    return view.old === "1" ? Array.from({ length: Math.min(OLD_ATTEMPTS, latest - 1) }, (_, index) => latest - 1 - index) : [];
  }, [view.old, job.attempt.number]);
  const olds = useQueries({ queries: numbers.map((attempt) => ({ ...seriesQuery(job.id, { attempt, maxPoints: 500 }), staleTime: 60_000 })) });
  const detailWindow = windowOf(zoom, kind, startMs);
  const detail = useQuery({
    ...seriesQuery(job.id, { ...detailWindow, maxPoints: 2000 }),
    enabled: detailWindow !== null,
    staleTime: 2000,
    placeholderData: keepPreviousData,
  });
  useReadingWithCurves(curves, detailWindow !== null, detail.refetch);
  const oldSeries = olds.map((old) => old.data?.series);

  const groups = useMemo(() => {
    const fine = detailWindow && detail.data ? new Map(detail.data.series.map((part) => curveOf(part)).map((curve) => [curve.key, curve])) : null;
    const shown = [...curves.values()].map((curve) => fine?.get(curve.key) ?? curve);
    const names = [...new Set(shown.map((curve) => curve.name))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    return names.map((name) => {
      const mine = shown.filter((curve) => curve.name === name);
      const ghosts = oldSeries.flatMap((series) => ghostsOf(series, name));
      return { name, context: commonContext(mine), lines: linesOf(mine, ghosts, kind, startMs, weight) };
    });
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [curves, detail.data, detailWindow === null, kind, startMs, weight, ...oldSeries]);

  if (error && curves.size === 0) return <ErrorNote error={error} />;
  if (pending) return <Loading what="curves" />;
  if (groups.length === 0)
    return (
      <Empty title={isLive(job.status) ? "No metrics yet" : "This job reported no metrics"}>
        <p>Print a line of JSON for each step, or call the SDK:</p>
        <pre>{'import weft\nweft.report(step=step, loss=loss)'}</pre>
      </Empty>
    );
  return (
    <>
      <CurveTools view={view} onView={onView} older={job.attempt.number > 1} zooms />
      <div className="charts">
        {groups.map((group) => (
          <Chart
            key={group.name}
            title={group.name}
            note={group.context ? <span className="tag">{group.context}</span> : null}
            lines={group.lines}
            xKind={kind}
            log={view.log === "1"}
            zoom={zoom}
            onZoom={(range) => onView({ from: range ? String(range[0]) : undefined, to: range ? String(range[1]) : undefined })}
            sync={job.id}
          />
        ))}
      </div>
    </>
  );
}

/** Has the curves of a zoom read again when points come: the stream adds them to the whole curves only. */
function useReadingWithCurves(curves: ReadonlyMap<string, Curve>, zoomed: boolean, read: () => Promise<unknown>): void {
  const known = useRef(curves);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    if (known.current === curves) return;
    known.current = curves;
    if (!zoomed) return;
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      void read();
    }, DETAIL_MS);
  }, [curves, zoomed, read]);
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      timer.current = undefined;
    },
    [zoomed],
  );
}

const ghostsOf = (series: JobSeries[] | undefined, name: string): Curve[] => (series ?? []).filter((part) => part.name === name).map((part) => curveOf(part));

export function linesOf(curves: Curve[], ghosts: Curve[], kind: XKind, startMs: number, weight: number): Line[] {
  const names = labels(curves);
  const current = curves.flatMap((curve, index): Line[] => {
    const x = xOf(curve, kind, startMs);
    const base = { label: names[index] ?? curve.name, x, colour: index };
    if (weight === 0) return [{ ...base, y: curve.y }];
    return [
      { ...base, label: `${base.label} (measured)`, y: curve.y, look: "faint" },
      { ...base, y: smoothed(curve.y, weight) },
    ];
  });
  const faded = ghosts.map((curve): Line => {
    const offset = kind === "elapsed" ? (curve.times[0] ?? startMs) : startMs;
    const colour = Math.max(0, curves.findIndex((other) => other.key === curve.key));
    return { label: `attempt ${curve.attempts[0] ?? "?"}`, x: xOf(curve, kind, offset), y: curve.y, colour, look: "ghost" };
  });
  return [...faded, ...current];
}
