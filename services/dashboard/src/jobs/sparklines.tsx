// A small curve of a metric in each row of the list: read for the rows on the screen by one request, thinned by the server.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, useContext } from "react";
import { jobsKey, type JobsFilter } from "../api/queries.ts";
import { runs } from "../api/types.ts";
import { valueOf } from "../format.ts";
import { nameOf, type Row } from "./list.ts";
import { readMetrics } from "./refresh.ts";

const POINTS = 40;
/** Rows whose curves are read at a time. */
const MOST = 50;
const SOON_MS = 500;
/** The curve of a job that runs is read again so often. */
const AGAIN_MS = 15_000;
/** Narrower lists need the room for names. The width of the column is in styles/screens.css. */
const WIDE = matchMedia("(min-width: 1200px)");
const WIDTH = 72;
const HEIGHT = 18;

interface Sparkline {
  /** Undefined: they could not be read. */
  values: number[] | undefined;
  /** `updated` of the job, and when this page read the curve, in ms. */
  updated: string;
  read: number;
}
export type Sparklines = ReadonlyMap<string, Sparkline>;

const NONE: Sparklines = new Map();
export const SparklinesContext = createContext<Sparklines>(NONE);

/** The curves of `metric` of the rows that were on the screen, by id. `rows`: all that are loaded, as the server orders them. */
export function useSparklines(filter: JobsFilter, metric: string | undefined, rows: readonly Row[], onScreen: ReadonlySet<string>): Sparklines {
  const queries = useQueryClient();
  const queryKey = ["sparklines", metric, ...jobsKey(filter)];
  const lacking = (known: Sparklines): Row[] =>
    rows.filter((row) => onScreen.has(row.id) && isWanted(row, metric ?? "", known.get(row.id))).slice(0, MOST);
  const { data } = useQuery({
    queryKey,
    queryFn: async ({ signal }) => {
      const known = queries.getQueryData<Sparklines>(queryKey) ?? NONE;
      const wanted = lacking(known);
      const answer = await readMetrics(filter, rows, wanted, { metrics: metric ?? "", curve_points: POINTS }, signal);
      const read = Date.now();
      const fresh = wanted.map((row): [string, Sparkline] => {
        const values = answer.get(row.id)?.[0]?.curve?.map(valueOf);
        return [row.id, { values: values ?? known.get(row.id)?.values, updated: row.updated, read }];
      });
      return fresh.length === 0 ? known : new Map([...known, ...fresh]);
    },
    enabled: metric !== undefined && WIDE.matches,
    refetchInterval: ({ state }) => (lacking(state.data ?? NONE).length > 0 ? SOON_MS : AGAIN_MS / 3),
    structuralSharing: false,
  });
  return WIDE.matches ? (data ?? NONE) : NONE;
}

function isWanted(row: Row, metric: string, known: Sparkline | undefined): boolean {
  if (known === undefined) return row.metrics?.some((other) => other.name === nameOf(metric)) ?? false;
  return known.updated !== row.updated || ((runs(row.status) || known.values === undefined) && Date.now() - known.read > AGAIN_MS);
}

export function Sparkline({ id }: { id: string }) {
  const values = useContext(SparklinesContext).get(id)?.values ?? [];
  const numbers = values.filter(Number.isFinite);
  if (numbers.length < 2) return null;
  const low = Math.min(...numbers);
  const span = Math.max(...numbers) - low || 1;
  const x = (at: number): string => ((at / (values.length - 1)) * WIDTH).toFixed(1);
  const y = (value: number): string => (HEIGHT - 1 - ((value - low) / span) * (HEIGHT - 2)).toFixed(1);
  // A value that is no number breaks the line.
  const path = values.map((value, at) => (Number.isFinite(value) ? `${at > 0 && Number.isFinite(values[at - 1]) ? "L" : "M"}${x(at)} ${y(value)}` : "")).join("");
  return (
    <svg className="sparkline" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
