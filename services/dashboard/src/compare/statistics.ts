// Statistics of a metric over groups of jobs, as the server computes them, and the lines that show them.
import { queryOptions } from "@tanstack/react-query";
import { client, dataOf, type Schemas } from "../api/client.ts";
import type { StatisticsGroup } from "../api/types.ts";
import type { Line } from "../charts/chart.tsx";
import { valueOf } from "../format.ts";

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

export const statisticsQuery = ({ ids, filter, metric, group }: Chosen, maxPoints = 500) =>
  queryOptions({
    queryKey: ["statistics", filter ?? ids.join(), metric, group ?? "", maxPoints],
    queryFn: async ({ signal }) =>
      dataOf(
        await client.GET("/v1/statistics", {
          params: { query: { name: metric, ...(filter === undefined ? { job: ids } : { q: filter }), max_points: maxPoints, ...grouping(group) } },
          signal,
        }),
      ),
    staleTime: 10_000,
  });

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
