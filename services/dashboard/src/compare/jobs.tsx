// The jobs that are compared: a list of which only the visible rows exist, since a filter may match a thousand.
import { queryOptions } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef } from "react";
import { client, dataOf } from "../api/client.ts";
import { PAGE_SIZE } from "../api/queries.ts";
import type { Job } from "../api/types.ts";
import { StatusBadge } from "../ui/status.tsx";

/** Jobs of a filter that are listed. */
const MOST = 1000;
const ROW_PX = 34;

/** The newest jobs that match, read page by page. `more`: there are others. */
export const comparedQuery = (q: string) =>
  queryOptions({
    queryKey: ["compared", q],
    queryFn: async ({ signal }) => {
      const jobs: Job[] = [];
      let after: string | null | undefined;
      do {
        const page = dataOf(await client.GET("/v1/jobs", { params: { query: { q, limit: PAGE_SIZE, ...(after ? { after } : {}) } }, signal }));
        jobs.push(...(page.jobs as Job[]));
        after = page.next;
      } while (after && jobs.length < MOST);
      return { jobs: jobs.slice(0, MOST), more: Boolean(after) };
    },
    staleTime: 10_000,
  });

export function labelOf(job: Job | undefined, all: readonly Job[], id: string): string {
  if (!job) return id;
  return all.some((other) => other.id !== job.id && other.name === job.name) ? `${job.name} ${job.id.slice(-5)}` : job.name;
}

export function ComparedJobs({ jobs, onRemove }: { jobs: readonly Job[]; onRemove?: (id: string) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: jobs.length, getScrollElement: () => box.current, estimateSize: () => ROW_PX, overscan: 10 });
  return (
    // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="compared" ref={box} tabIndex={0} role="region" aria-label="The jobs that are compared">
      <ul style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const job = jobs[item.index];
          return job ? (
            <li key={job.id} aria-setsize={jobs.length} aria-posinset={item.index + 1} style={{ transform: `translateY(${item.start}px)` }}>
              <span className={`swatch c${item.index % 8}`} aria-hidden="true" />
              <Link to="/jobs/$id" params={{ id: job.id }} className="strong">
                {job.name}
              </Link>
              <StatusBadge status={job.status} />
              <span className="mono faint wide-only">{job.id}</span>
              {onRemove ? (
                <button type="button" className="quiet" onClick={() => onRemove(job.id)}>
                  Remove
                </button>
              ) : null}
            </li>
          ) : null;
        })}
      </ul>
    </div>
  );
}
