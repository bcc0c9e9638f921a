// What the live stream leaves out of a list is read again from time to time, and only while somebody looks at it.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { client, dataOf } from "../api/client.ts";
import { change, jobsKey, type JobsFilter } from "../api/queries.ts";
import type { JobMetric } from "../api/types.ts";
import { needsMetrics, type Pages, type Row, withMetrics } from "./list.ts";

export const LIST_MS = 3000;
const METRICS_MS = 3000;
/** Rows whose metrics are read at a time. */
const MOST = 100;

/** A function that has the list read again soon. Many calls in a short time are one reading. */
export function useReadingAgain(filter: JobsFilter): () => void {
  const queries = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      timer.current = undefined;
    },
    [filter],
  );
  const queryKey = jobsKey(filter);
  const readAgain = (): void => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      // An answer that is on its way may be older than the change, and the next page may be on its way: both end first.
      if (queries.isFetching({ queryKey }) > 0) readAgain();
      else void queries.invalidateQueries({ queryKey, refetchType: document.hidden ? "none" : "active" });
    }, LIST_MS);
  };
  return readAgain;
}

/** The metrics of some of the rows, by id. `rows`: all that are loaded, as the server orders them. */
export async function readMetrics(
  filter: JobsFilter,
  rows: readonly Row[],
  wanted: readonly Row[],
  metrics: { metrics: string; curve_points?: number },
  signal: AbortSignal,
): Promise<ReadonlyMap<string, JobMetric[]>> {
  const [first] = wanted;
  if (!first) return new Map();
  // The server looks for them from the row before the first one, until it has all of them.
  const before = rows[rows.indexOf(first) - 1]?.id;
  const q = `id in (${wanted.map((row) => row.id).join()})`;
  const query = { q, limit: wanted.length, order: filter.order, fields: "id,metrics", ...metrics, ...(filter.tenant ? { tenant: filter.tenant } : {}), ...(before ? { after: before } : {}) };
  const { jobs } = dataOf(await client.GET("/v1/jobs", { params: { query }, signal }));
  return new Map(jobs.map((job) => [job.id, job.metrics ?? []]));
}

/** Keeps the metrics of the rows on the screen current. `rows`: all that are loaded, as the server orders them. */
export function useFreshMetrics(filter: JobsFilter, rows: readonly Row[], onScreen: ReadonlySet<string>): void {
  const queries = useQueryClient();
  const queryKey = jobsKey(filter);
  useQuery({
    queryKey: ["metrics of rows", ...queryKey],
    queryFn: async ({ signal }) => {
      const wanted = rows.filter((row) => onScreen.has(row.id) && needsMetrics(row)).slice(0, MOST);
      if (wanted.length === 0) return null;
      const answer = await readMetrics(filter, rows, wanted, { metrics: filter.metrics.join() }, signal);
      change<Pages>(queries, queryKey, (data) => withMetrics(data, wanted, answer));
      return null;
    },
    enabled: filter.metrics.length > 0,
    refetchInterval: METRICS_MS,
    notifyOnChangeProps: [], // the rows are drawn again if their metrics changed, not for each reading
  });
}
