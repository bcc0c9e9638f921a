// A chart by uPlot. It draws lines and bands that others computed, tells which window was zoomed to, and is mounted only
// while it is in view: a page with hundreds of metrics costs what is on the screen.
import { type ReactNode, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import { duration, number } from "../format.ts";
import { useStore } from "../store.ts";
import { colours } from "../ui/theme.ts";
import { aligned, type XKind } from "./series.ts";

export interface Line {
  label: string;
  x: readonly number[];
  /** NaN marks a value that is no number. */
  y: readonly number[];
  /** Number of the colour. */
  colour: number;
  look?: "normal" | "faint" | "ghost" | "hidden";
  /** Fills the area between this line and the next one. */
  band?: boolean;
}

export interface ChartProps {
  title: string;
  lines: readonly Line[];
  xKind: XKind;
  log: boolean;
  zoom: readonly [number, number] | null;
  onZoom: (range: readonly [number, number] | null) => void;
  sync?: string;
  note?: ReactNode;
  height?: number;
}

export const PALETTE_SIZE = 8;

/** Draws the chart while it is on the screen or near it; keeps its place otherwise. */
export function Chart(props: ChartProps) {
  const frame = useRef<HTMLElement>(null);
  const [seen, setSeen] = useState(false);
  useLayoutEffect(() => {
    if (!frame.current) return undefined;
    // What is in view at once is drawn with the page: the observer reports it one frame later.
    const { top, bottom } = frame.current.getBoundingClientRect();
    if (top < innerHeight && bottom > 0) setSeen(true);
    const observer = new IntersectionObserver((entries) => setSeen(entries.at(-1)?.isIntersecting ?? false), { rootMargin: "200px" });
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);
  const bare = useMemo(() => props.lines.filter((line) => line.look === undefined || line.look === "normal"), [props.lines]);
  const broken = bare.reduce((sum, line) => sum + line.y.filter((value) => !Number.isFinite(value)).length, 0);
  return (
    <figure className="chart" ref={frame}>
      <figcaption>
        <span className="chart-title">{props.title}</span>
        {broken > 0 ? <span className="chart-nan">{broken} × not a number</span> : null}
        {props.note}
        {props.zoom ? (
          <button type="button" className="quiet" onClick={() => props.onZoom(null)}>
            Reset zoom
          </button>
        ) : null}
      </figcaption>
      {seen ? <Plot {...props} /> : <div style={{ height: props.height ?? HEIGHT_PX }} />}
      <Legend lines={bare} />
    </figure>
  );
}

/** The last and the best values in words: the picture for those who do not see it. */
function Legend({ lines }: { lines: readonly Line[] }) {
  const shown = lines.slice(0, 12);
  return (
    <ul className="legend">
      {shown.map((line) => {
        const finite = line.y.filter(Number.isFinite);
        const last = line.y.at(-1);
        return (
          <li key={line.label}>
            <span className={`swatch c${line.colour % PALETTE_SIZE}`} aria-hidden="true" />
            <span className="legend-label">{line.label}</span>
            <span className="legend-value">{last === undefined ? "–" : number(last)}</span>
            {finite.length > 1 ? (
              <span className="faint">
                min {number(finite.reduce((a, b) => Math.min(a, b)))} · max {number(finite.reduce((a, b) => Math.max(a, b)))}
              </span>
            ) : null}
          </li>
        );
      })}
      {lines.length > shown.length ? <li className="faint">and {lines.length - shown.length} more</li> : null}
    </ul>
  );
}

const HEIGHT_PX = 190;
/** Distances of the marks on an axis of steps: whole numbers. */
const STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

function Plot({ title, lines, xKind, log, zoom, onZoom, sync, height = HEIGHT_PX }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const zoomed = useRef(onZoom);
  /** What the plot shows now: a second drawing of the same costs as much as the first one. */
  const drawn = useRef<{ data: uPlot.AlignedData; zoom: readonly [number, number] | null } | null>(null);
  const marks = useRef<number[]>([]);
  const paint = useStore(colours);
  useEffect(() => {
    zoomed.current = onZoom;
  });
  const data = useMemo(() => {
    const columns = aligned(
      lines.map((line) => ({
        x: line.x,
        y: line.y.map((value) => (Number.isFinite(value) && !(log && value <= 0) ? value : null)),
      })),
    );
    return [columns.x, ...columns.ys] as uPlot.AlignedData;
  }, [lines, log]);
  // What the plot is made of. New values alone do not make it anew.
  const shape = lines.map((line) => `${line.label}|${line.colour}|${line.look ?? ""}|${line.band ? 1 : 0}`).join("\n");
  marks.current = lines.flatMap((line) =>
    line.look === undefined || line.look === "normal" ? line.x.filter((_, index) => !Number.isFinite(line.y[index])) : [],
  );

  useLayoutEffect(() => {
    if (!box.current) return undefined;
    const target = box.current;
    const made = new uPlot(
      optionsOf({ lines, xKind, log, sync, width: target.clientWidth, height, colour: (name) => cssColour(target, name), marks, onZoom: (range) => zoomed.current(range) }),
      data,
      target,
    );
    plot.current = made;
    drawn.current = { data, zoom: null };
    const observer = new ResizeObserver(() => {
      // The observer reports the size that the plot was made with, too.
      if (made.width !== target.clientWidth) made.setSize({ width: target.clientWidth, height });
    });
    observer.observe(target);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
    // oxlint-disable-next-line react-hooks/exhaustive-deps
  }, [shape, xKind, log, sync, height, paint]);

  useEffect(() => {
    const made = plot.current;
    if (!made || (drawn.current?.data === data && drawn.current.zoom === zoom)) return;
    drawn.current = { data, zoom };
    made.setData(data, zoom === null);
    if (zoom) made.setScale("x", { min: zoom[0], max: zoom[1] });
  }, [data, zoom, shape, xKind, log, paint]);

  return <div ref={box} className="plot" role="img" aria-label={`Chart of ${title}. Its values are in the list below.`} />;
}

interface Options {
  lines: readonly Line[];
  xKind: XKind;
  log: boolean;
  sync: string | undefined;
  width: number;
  height: number;
  colour: (name: string) => string;
  marks: { current: number[] };
  onZoom: (range: readonly [number, number] | null) => void;
}

function optionsOf({ lines, xKind, log, sync, width, height, colour, marks, onZoom }: Options): uPlot.Options {
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--text-soft"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
  const bands = lines.flatMap((line, index) =>
    line.band ? [{ series: [index + 1, index + 2] as [number, number], fill: translucent(colour(`--c${line.colour % PALETTE_SIZE}`), 0.16) }] : [],
  );
  return {
    width,
    height,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      ...(sync ? { sync: { key: sync, setSeries: false } } : {}),
    },
    scales: { x: { time: xKind === "time" }, y: log ? { distr: 3 } : { range: padded } },
    axes: [
      { ...axis, size: 26, space: 70, ...(xKind === "step" ? { incrs: STEPS } : {}), ...(xKind === "elapsed" ? { values: (_: uPlot, ticks: number[]) => ticks.map((tick) => duration(tick * 1000)) } : xKind === "step" ? { values: (_: uPlot, ticks: number[]) => ticks.map(number) } : {}) },
      { ...axis, size: 54, space: 32, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
    ],
    bands,
    series: [
      {},
      ...lines.map((line): uPlot.Series => {
        const stroke = colour(`--c${line.colour % PALETTE_SIZE}`);
        return {
          label: line.label,
          stroke: line.look === "faint" ? translucent(stroke, 0.28) : line.look === "ghost" ? translucent(stroke, 0.45) : line.look === "hidden" ? "transparent" : stroke,
          width: line.look === "faint" || line.look === "ghost" ? 1 : 1.6,
          ...(line.look === "ghost" ? { dash: [4, 4] } : {}),
          points: { show: line.x.length === 1 && line.look !== "hidden" },
          spanGaps: false,
        };
      }),
    ],
    hooks: {
      setSelect: [
        (made) => {
          if (made.select.width < 4) return;
          const from = made.posToVal(made.select.left, "x");
          const to = made.posToVal(made.select.left + made.select.width, "x");
          made.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          onZoom([from, to]);
        },
      ],
      ready: [
        (made) => {
          made.over.addEventListener("dblclick", () => onZoom(null));
          made.over.append(tipOf(made, lines, xKind));
        },
      ],
      draw: [(made) => drawMarks(made, marks.current, colour("--bad"))],
    },
  };
}

/** A little air above and below; a constant line lies in the middle. */
function padded(_: uPlot, min: number | null, max: number | null): [number, number] {
  if (min === null || max === null) return [0, 1];
  const air = max > min ? (max - min) * 0.06 : Math.abs(max) * 0.1 || 1;
  return [min - air, max + air];
}

/** Red marks on the x axis, where a value was no number. */
function drawMarks(made: uPlot, xs: readonly number[], colour: string): void {
  const { ctx, bbox } = made;
  ctx.save();
  ctx.fillStyle = colour;
  for (const x of xs) {
    const left = made.valToPos(x, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left - 4, bbox.top + bbox.height);
    ctx.lineTo(left + 4, bbox.top + bbox.height);
    ctx.lineTo(left, bbox.top + bbox.height - 7);
    ctx.fill();
  }
  ctx.restore();
}

/** The values under the pointer. Labels of metrics are set as text. */
function tipOf(made: uPlot, lines: readonly Line[], xKind: XKind): HTMLElement {
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  const previous = made.hooks.setCursor ?? [];
  made.hooks.setCursor = [
    ...previous,
    () => {
      const { idx, left = -1 } = made.cursor;
      const x = idx === null || idx === undefined ? undefined : made.data[0][idx];
      if (x === undefined || left < 0) {
        tip.hidden = true;
        return;
      }
      const rows = lines.flatMap((line, index) => {
        const value = idx === null || idx === undefined ? undefined : made.data[index + 1]?.[idx];
        if (value === undefined || value === null || line.look === "hidden" || line.look === "faint") return [];
        const row = document.createElement("div");
        const swatch = document.createElement("span");
        swatch.className = `swatch c${line.colour % PALETTE_SIZE}`;
        row.append(swatch, `${line.label} `, Object.assign(document.createElement("b"), { textContent: number(value) }));
        return [row];
      });
      const head = xKind === "step" ? `step ${number(x)}` : xKind === "elapsed" ? duration(x * 1000) : new Date(x * 1000).toLocaleTimeString();
      tip.replaceChildren(Object.assign(document.createElement("div"), { className: "chart-tip-x", textContent: head }), ...rows.slice(0, 10));
      tip.hidden = rows.length === 0;
      const right = left > made.over.clientWidth / 2;
      tip.style.left = right ? "" : `${left + 12}px`;
      tip.style.right = right ? `${made.over.clientWidth - left + 12}px` : "";
    },
  ];
  return tip;
}

/** Colours of the style sheet as the canvas understands them, by name; until the theme changes. To read one, the browser
 * computes the styles of the page anew. */
const known = new Map<string, string>();
colours.subscribe(() => known.clear());

function cssColour(near: HTMLElement, name: string): string {
  const before = known.get(name);
  if (before !== undefined) return before;
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  near.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  known.set(name, value);
  return value;
}

const translucent = (rgb: string, alpha: number): string => rgb.replace(/^rgba?\(([^)]+)\)$/, (_, parts: string) => `rgba(${parts.split(",").slice(0, 3).join(",")},${alpha})`);
