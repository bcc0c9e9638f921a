// Every metric of the jobs, as mean and spread of their groups. A chart is read and drawn while it is in view.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { Chart } from "../charts/chart.tsx";
import { plural } from "../format.ts";
import { ErrorNote } from "../ui/notes.tsx";
import { bandsOf, type Chosen, statisticsQueries } from "./statistics.ts";
import { inTurn } from "./turns.ts";

const HEIGHT_PX = 150;
const POINTS = 200;
/** A chart that a fast scroll passes is neither read nor drawn: it waits for a pause, at most a while. */
const PAUSE_MS = 120;
const SETTLED_MS = 700;

/** Of any box, since the page was loaded. */
let scrolledAt = 0;
document.addEventListener("scroll", () => (scrolledAt = performance.now()), { capture: true, passive: true });

/** Nothing was scrolled for a moment. */
const isStill = (): boolean => performance.now() - scrolledAt >= PAUSE_MS;

export function AllMetrics({ names, shown, onShown, ids, filter, group }: Omit<Chosen, "metric"> & { names: string[]; shown: boolean; onShown: (shown: boolean) => void }) {
  const queryOf = useMemo(() => statisticsQueries({ ids, filter, group }, POINTS), [ids, filter, group]);
  return (
    <>
      <div className="screen-head">
        <h2>All metrics</h2>
        <button type="button" className="button compact" aria-expanded={shown} onClick={() => onShown(!shown)}>
          {shown ? "Hide" : `Show ${plural(names.length, "metric")}`}
        </button>
      </div>
      {shown ? (
        <div className="charts">
          {names.map((name) => (
            <InView key={name} metric={name} queryOf={queryOf} />
          ))}
        </div>
      ) : null}
    </>
  );
}

interface MetricProps {
  metric: string;
  queryOf: ReturnType<typeof statisticsQueries>;
}

/** Keeps the place of a chart, and shows it while it is on the screen or near it. */
function InView(metric: MetricProps) {
  const box = useRef<HTMLDivElement>(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (!box.current) return undefined;
    let settled: ReturnType<typeof setTimeout> | undefined;
    const observer = new IntersectionObserver(
      (entries) => {
        clearTimeout(settled);
        // A busy page gets several reports at once: the last one counts.
        if (!entries.at(-1)?.isIntersecting) return setNear(false);
        const since = performance.now();
        const wait = (): void => {
          if (isStill() || performance.now() - since >= SETTLED_MS) setNear(true);
          else settled = setTimeout(wait, PAUSE_MS / 2);
        };
        wait();
      },
      { rootMargin: "300px" },
    );
    observer.observe(box.current);
    return () => {
      clearTimeout(settled);
      observer.disconnect();
    };
  }, []);
  return (
    <div ref={box} className="chart-place">
      {near ? <Metric {...metric} /> : null}
    </div>
  );
}

function Metric({ metric, queryOf }: MetricProps) {
  const [still, setStill] = useState(isStill);
  useEffect(() => {
    if (still) return undefined;
    const timer = setInterval(() => setStill(isStill()), PAUSE_MS / 2);
    return () => clearInterval(timer);
  }, [still]);
  // The server reads all jobs for a chart. While the page is scrolled, statistics that are here already are not read again.
  const statistics = useQuery({ ...queryOf(metric), enabled: (query) => still || query.state.data === undefined });
  const ready = statistics.data !== undefined;
  const [drawn, setDrawn] = useState(false);
  useEffect(() => (ready ? inTurn(() => setDrawn(true)) : undefined), [ready]);
  const lines = useMemo(() => bandsOf(statistics.data), [statistics.data]);
  if (statistics.error) return <ErrorNote error={statistics.error} />;
  if (drawn) return <Chart title={metric} lines={lines} xKind="step" log={false} zoom={null} onZoom={() => undefined} height={HEIGHT_PX} />;
  return (
    <figure className="chart">
      <figcaption className="chart-title">{metric}</figcaption>
    </figure>
  );
}
