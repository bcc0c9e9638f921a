// Statistics of a metric over groups of jobs, as the server computes them, and the lines that show them.
import { queryOptions } from "@tanstack/react-query";
import { client, dataOf, type Schemas } from "../api/client.ts";
import type { StatisticsGroup } from "../api/types.ts";
import type { Line } from "../charts/chart.tsx";
import { valueOf } from "../format.ts";
import { batching } from "./batches.ts";

export interface Chosen {
  ids: string[];
  /** In place of the ids: all jobs that match. */
  filter: string | undefined;
  metric: string;
  group: string | undefined;
}

/** "except:env.SEED" -> the parameters of the statistics. */
export function grouping(group: string | undefined): { except?: string[]; by?: string[] } {
  const match = /^(except|by):(.+)$/.exec(group ?? "");
  const fields = match?.[2]?.split(",").filter(Boolean) ?? [];
  if (fields.length === 0) return {};
  return match?.[1] === "by" ? { by: fields } : { except: fields };
}

type Statistics = Schemas["StatisticsReply"];
type Jobs = Omit<Chosen, "metric">;

/** By metric. Metrics that no job has reported have no groups. */
async function read({ ids, filter, group }: Jobs, names: string[], maxPoints: number, signal: AbortSignal): Promise<ReadonlyMap<string, Statistics>> {
  const [name = "", ...also] = names;
  const jobs = filter === undefined ? { job: ids } : { q: filter };
  const query = { name, ...(also.length > 0 ? { also } : {}), ...jobs, max_points: maxPoints, ...grouping(group) };
  const answer = dataOf(await client.GET("/v1/statistics", { params: { query }, signal }));
  return new Map(names.map((metric) => [metric, { ...answer, groups: answer.groups.filter((part) => part.name === metric) }]));
}

const queryOf = ({ ids, filter, group }: Jobs, metric: string, maxPoints: number, readOne: (metric: string, signal: AbortSignal) => Promise<Statistics>) =>
  queryOptions({
    queryKey: ["statistics", filter ?? ids.join(), metric, group ?? "", maxPoints],
    queryFn: ({ signal }) => readOne(metric, signal),
    staleTime: 10_000,
  });

export const statisticsQuery = ({ metric, ...jobs }: Chosen, maxPoints = 500) =>
  queryOf(jobs, metric, maxPoints, async (name, signal) => (await read(jobs, [name], maxPoints, signal)).get(name) as Statistics);

/** Queries of single metrics of the same jobs, which read several metrics by one request. */
export function statisticsQueries(jobs: Jobs, maxPoints: number) {
  const readOne = batching((names, signal) => read(jobs, names, maxPoints, signal));
  return (metric: string) => queryOf(jobs, metric, maxPoints, readOne);
}

export const groupName = (group: StatisticsGroup): string =>
  Object.entries(group.key)
    .map(([field, value]) => `${field} = ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join(", ") || "all";

/** Of each group its mean, and a band of one standard deviation. */
export const bandsOf = (answer: Schemas["StatisticsReply"] | undefined): Line[] => answer?.groups.flatMap((part, index) => bandOf(part, index)) ?? [];

function bandOf(group: StatisticsGroup, colour: number): Line[] {
  const mean = group.mean.map(valueOf);
  const std = group.std.map(valueOf);
  const base = { x: group.steps, colour };
  const label = groupName(group);
  return [
    { ...base, label: `${label} upper`, y: mean.map((value, index) => value + (std[index] ?? 0)), look: "hidden", band: true },
    { ...base, label: `${label} lower`, y: mean.map((value, index) => value - (std[index] ?? 0)), look: "hidden" },
    { ...base, label, y: mean },
  ];
}
