// Curves as charts want them: from the API's columns, smoothed, and aligned on one x axis. Pure.
import type { JobPoint, JobSeries } from "../api/types.ts";
import { valueOf } from "../format.ts";

export type XKind = "step" | "time" | "elapsed";

/** One curve. `y` is NaN where the training reported no finite number. */
export interface Curve {
  key: string;
  name: string;
  context: Record<string, string>;
  role: string;
  rank: number;
  steps: (number | null)[];
  times: number[];
  y: number[];
  attempts: number[];
}

export function keyOf(part: { name: string; context: Record<string, string>; role: string; rank: number }): string {
  const context = Object.entries(part.context).sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([part.name, context, part.role, part.rank]);
}

export function curveOf(series: JobSeries): Curve {
  return {
    key: keyOf(series),
    name: series.name,
    context: series.context,
    role: series.role,
    rank: series.rank,
    steps: [...series.steps],
    times: series.times.map((time) => Date.parse(time)),
    y: series.values.map(valueOf),
    attempts: [...series.attempts],
  };
}

/** A curve with more points is thinned. */
const MOST_POINTS = 4000;
const STRETCHES = 1000;

/** The curves with points that came in since. A step that is reported again replaces the former value, as the API does. */
export function withPoints(curves: ReadonlyMap<string, Curve>, points: readonly JobPoint[]): Map<string, Curve> {
  const next = new Map(curves);
  const fresh = new Set<string>();
  for (const point of points) {
    const key = keyOf(point);
    let curve = next.get(key);
    if (!curve || !fresh.has(key)) {
      curve = curve ? copied(curve) : { key, name: point.name, context: point.context, role: point.role, rank: point.rank, steps: [], times: [], y: [], attempts: [] };
      next.set(key, curve);
      fresh.add(key);
    }
    put(curve, point);
  }
  for (const key of fresh) {
    const curve = next.get(key);
    if (curve && curve.y.length > MOST_POINTS) next.set(key, thinned(curve));
  }
  return next;
}

/** Keeps of each stretch of the x axis the lowest and the highest value, and one that is no number; and the last point. */
function thinned(curve: Curve): Curve {
  const x = curve.steps.every((step) => step !== null) ? curve.steps : curve.times;
  const from = x.reduce((a, b) => Math.min(a, b));
  const length = (x.reduce((a, b) => Math.max(a, b)) - from) / STRETCHES || 1;
  const stretches = new Map<number, { low?: number; high?: number; broken?: number }>();
  for (const [at, value] of curve.y.entries()) {
    const number = Math.floor(((x[at] ?? from) - from) / length);
    const stretch = stretches.get(number) ?? {};
    stretches.set(number, stretch);
    if (!Number.isFinite(value)) stretch.broken ??= at;
    else {
      if (stretch.low === undefined || value < (curve.y[stretch.low] ?? 0)) stretch.low = at;
      if (stretch.high === undefined || value > (curve.y[stretch.high] ?? 0)) stretch.high = at;
    }
  }
  const places = new Set([...stretches.values()].flatMap(({ low, high, broken }) => [low, high, broken]));
  places.add(curve.y.length - 1);
  const kept = <T>(column: T[]): T[] => column.filter((_, at) => places.has(at));
  return { ...curve, steps: kept(curve.steps), times: kept(curve.times), y: kept(curve.y), attempts: kept(curve.attempts) };
}

const copied = (curve: Curve): Curve => ({
  ...curve,
  steps: [...curve.steps],
  times: [...curve.times],
  y: [...curve.y],
  attempts: [...curve.attempts],
});

function put(curve: Curve, point: JobPoint): void {
  const { step } = point;
  let at = curve.steps.length;
  if (step !== null) {
    while (at > 0 && (curve.steps[at - 1] ?? -1) >= step) at -= 1;
    if (curve.steps[at] === step && (curve.attempts[at] ?? 0) > point.attempt) return;
  }
  const replaced = step !== null && curve.steps[at] === step ? 1 : 0;
  curve.steps.splice(at, replaced, step);
  curve.times.splice(at, replaced, Date.parse(point.time));
  curve.y.splice(at, replaced, valueOf(point.value));
  curve.attempts.splice(at, replaced, point.attempt);
}

/** The x values of a curve: steps (or the place in the row, without steps), seconds of the clock, or seconds since `start`. */
export function xOf(curve: Curve, kind: XKind, startMs: number): number[] {
  if (kind === "step") return curve.steps.map((step, index) => step ?? index);
  const offset = kind === "elapsed" ? startMs : 0;
  return curve.times.map((time) => (time - offset) / 1000);
}

/** Exponential moving average, corrected for its start as TensorBoard does. `weight` 0 to <1. Gaps stay gaps. */
export function smoothed(y: readonly number[], weight: number): number[] {
  let sum = 0;
  let n = 0;
  return y.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + (1 - weight) * value;
    n += 1;
    return sum / (1 - weight ** n);
  });
}

/** Columns for uPlot: all x values once, in order; undefined where a curve has no point, null where it has no number. */
export function aligned(curves: readonly { x: readonly number[]; y: readonly (number | null)[] }[]): {
  x: number[];
  ys: (number | null | undefined)[][];
} {
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const place = new Map(x.map((value, index) => [value, index]));
  const ys = curves.map((curve) => {
    const column = Array.from<number | null | undefined>({ length: x.length });
    for (const [index, value] of curve.x.entries()) {
      const at = place.get(value);
      if (at !== undefined) column[at] = curve.y[index] ?? null;
    }
    return column;
  });
  return { x, ys };
}

/** The labels that all of these curves have in common, e.g. "subset=test". */
export function commonContext(curves: readonly Curve[]): string {
  const common = Object.entries(curves[0]?.context ?? {}).filter(([name, value]) => curves.every((curve) => curve.context[name] === value));
  return common.map(([name, value]) => `${name}=${value}`).join(" ");
}

/** What sets the curves of one chart apart: only the parts of their labels that differ. */
export function labels(curves: readonly Curve[]): string[] {
  const names = curves.map((curve) => ({
    ...curve.context,
    learner: `${curve.role}-${curve.rank}`,
  })) as Record<string, string>[];
  const fields = [...new Set(names.flatMap((name) => Object.keys(name)))].filter(
    (field) => new Set(names.map((name) => name[field])).size > 1,
  );
  return names.map((name, index) => fields.map((field) => name[field] ?? "").filter(Boolean).join(" ") || (curves[index]?.name ?? ""));
}
