// The list of jobs, kept current by the live stream.
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { useLive } from "../api/live.ts";
import { isTemporary } from "../api/problem.ts";
import { change, jobsKey, jobsQuery, type JobsFilter, readAgain } from "../api/queries.ts";
import type { Job } from "../api/types.ts";
import { comparesMetrics, isListed, Meanwhile, type Pages, withJob, withoutJob } from "./list.ts";
import { LIST_MS, useReadingAgain } from "./refresh.ts";

/** The pages of the list that are loaded. They change with each job that does. */
export function useLiveList(filter: JobsFilter) {
  const { q, order, tenant } = filter;
  const queries = useQueryClient();
  const queryKey = jobsKey(filter);
  const acceptsAll = !comparesMetrics(q);
  const { changes: meanwhile } = useMemo(() => ({ filter, changes: new Meanwhile() }), [filter]);
  const listing = useInfiniteQuery({
    ...jobsQuery(filter, (pages) => meanwhile.applied(pages, order, acceptsAll)),
    // The rows of the former filter stay until the first answer. After an error they would come and go with each new try.
    ...(queries.getQueryState(queryKey)?.errorUpdateCount ? { placeholderData: undefined } : {}),
    // Nothing else reads a list again that could not be read, lacks changes, or was answered from the past.
    refetchInterval: ({ state: { data, error, isInvalidated } }) =>
      (data ? isInvalidated || data.pages.some((page) => page.isOld) : isTemporary(error)) ? LIST_MS : false,
  });
  const readSoon = useReadingAgain(filter);
  useEffect(() => {
    // The stream changes one list only. The others are read again when they are shown.
    void queries.invalidateQueries({ queryKey: ["jobs"], type: "inactive", refetchType: "none" });
  }, [queries, filter]);

  // Also while it is paused between two tries: the pages that it has read are kept.
  const isBeingRead = (): boolean => (queries.getQueryState(queryKey)?.fetchStatus ?? "idle") !== "idle";
  const follow = (id: string, job: Job | null, apply: (data: Pages) => Pages): void => {
    if (isBeingRead()) meanwhile.add(id, job);
    else meanwhile.clear();
    change(queries, queryKey, apply);
  };
  const wrongFilter = listing.error !== null && listing.data === undefined && !isTemporary(listing.error);
  useLive(wrongFilter ? null : new URLSearchParams({ list: "true", ...(q ? { q } : {}), ...(tenant ? { tenant } : {}) }).toString(), {
    onReady: (resumed) => {
      if (resumed) return;
      meanwhile.clear();
      void readAgain(queries, ["jobs"]);
    },
    onJob: (job) => {
      const listed = isListed(queries.getQueryData<Pages>(queryKey), job.id);
      // Whether an answer that is on its way lacks the job for its metrics, or for what it was before, cannot be known.
      if (!acceptsAll && (!listed || isBeingRead())) readSoon();
      if (acceptsAll || listed) follow(job.id, job, (data) => withJob(data, job, order));
    },
    onLeft: (id) => follow(id, null, (data) => withoutJob(data, id)),
  });
  return listing;
}
