// The list of jobs, kept current by the live stream.
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { useLive } from "../api/live.ts";
import { jobsKey, jobsQuery, type JobsFilter, readAgain } from "../api/queries.ts";
import type { Job } from "../api/types.ts";
import { comparesMetrics, isListed, Meanwhile, type Pages, withJob, withoutJob } from "./list.ts";
import { useReadingAgain } from "./refresh.ts";

/** The pages of the list that are loaded. They change with each job that does. */
export function useLiveList(filter: JobsFilter) {
  const { q, order, tenant } = filter;
  const queries = useQueryClient();
  const queryKey = jobsKey(filter);
  const acceptsAll = !comparesMetrics(q);
  const { changes: meanwhile } = useMemo(() => ({ filter, changes: new Meanwhile() }), [filter]);
  const listing = useInfiniteQuery(jobsQuery(filter, (pages) => meanwhile.applied(pages, order, acceptsAll)));
  const readSoon = useReadingAgain(filter);

  const change = (id: string, job: Job | null, apply: (data: Pages) => Pages): void => {
    if (queries.isFetching({ queryKey }) > 0) meanwhile.add(id, job);
    else meanwhile.clear();
    queries.setQueryData<Pages>(queryKey, (data) => data && apply(data));
  };
  const wrongFilter = listing.error !== null && listing.data === undefined;
  useLive(wrongFilter ? null : new URLSearchParams({ list: "true", ...(q ? { q } : {}), ...(tenant ? { tenant } : {}) }).toString(), {
    onReady: (resumed) => {
      if (resumed) return;
      meanwhile.clear();
      void readAgain(queries, ["jobs"]);
    },
    onJob: (job) => {
      if (acceptsAll || isListed(queries.getQueryData<Pages>(queryKey), job.id)) change(job.id, job, (data) => withJob(data, job, order));
      else readSoon();
    },
    onLeft: (id) => change(id, null, (data) => withoutJob(data, id)),
  });
  return listing;
}
