// Changes of a list of jobs that is already on the screen. Pure: the pages come in, the new pages go out.
import type { InfiniteData } from "@tanstack/react-query";
import { type Job, type JobMetric, runs } from "../api/types.ts";

/** `metricsOf`: `updated` of the state at which the metrics were read, where the job has changed since. */
export type Row = Job & { metricsOf?: string };
export interface Page {
  jobs: Row[];
  next?: string | null;
  /** The job store was away: the answer is one that the server had given before. */
  isOld?: boolean;
}
export type Pages = InfiniteData<Page, string>;

/** The metric of a column: `loss` of `loss:min`. */
export const nameOf = (metric: string): string => metric.replace(/:(min|max)$/, "");

/** The pages with the job as it is now. A new job goes where its time of submission puts it, if that place is loaded. */
export function withJob(data: Pages, job: Job, order: "newest" | "oldest"): Pages {
  let known = false;
  const pages = data.pages.map((page) => {
    const at = page.jobs.findIndex((other) => other.id === job.id);
    if (at < 0) return page;
    known = true;
    const before = page.jobs[at];
    if (before && before.updated > job.updated) return page;
    const metrics = before?.metrics && !job.metrics ? { metrics: before.metrics, metricsOf: before.metricsOf ?? before.updated } : {};
    return { ...page, jobs: page.jobs.with(at, { ...job, ...metrics }) };
  });
  return known ? { ...data, pages } : inserted(data, job, order);
}

export const isListed = (data: Pages | undefined, id: string): boolean => data?.pages.some((page) => page.jobs.some((job) => job.id === id)) ?? false;

/** The live stream has no metrics: those of a job that runs, or has changed since they were read, are read again. */
export const needsMetrics = (job: Row): boolean => runs(job.status) || job.metrics === undefined || (job.metricsOf ?? job.updated) !== job.updated;

/** The pages with metrics that were read for `rows`. No metrics at all may be those of a service that is away. */
export function withMetrics(data: Pages, rows: readonly Row[], answer: ReadonlyMap<string, JobMetric[]>): Pages {
  const requested = new Map(rows.map((row) => [row.id, row]));
  const fresh = (job: Row): Row => {
    const row = requested.get(job.id);
    const metrics = answer.get(job.id);
    if (!row || !metrics || (metrics.length === 0 && job.metrics)) return job;
    return { ...job, metrics, metricsOf: row.updated };
  };
  return { ...data, pages: data.pages.map((page) => ({ ...page, jobs: page.jobs.map(fresh) })) };
}

/** The live stream does not compare metrics: it sends each job that the rest of such a filter lets through. */
export const comparesMetrics = (q: string): boolean => q.includes("metric.");

function inserted(data: Pages, job: Job, order: "newest" | "oldest"): Pages {
  const precedes = (other: Job): boolean => (order === "newest" ? earlier(other, job) : earlier(job, other));
  for (const [number, page] of data.pages.entries()) {
    const at = page.jobs.findIndex(precedes);
    const place = at < 0 && page.next === null ? page.jobs.length : at;
    if (place < 0) continue;
    const pages = data.pages.with(number, { ...page, jobs: page.jobs.toSpliced(place, 0, job) });
    return { ...data, pages };
  }
  return data;
}

const earlier = (job: Job, other: Job): boolean =>
  job.created < other.created || (job.created === other.created && job.id < other.id);

export function withoutJob(data: Pages, id: string): Pages {
  if (!isListed(data, id)) return data;
  return { ...data, pages: data.pages.map((page) => ({ ...page, jobs: page.jobs.filter((job) => job.id !== id) })) };
}

/** What the live stream brings while an answer is on its way: the answer may be older, and it takes the place of the pages that were changed. */
export class Meanwhile {
  /** Job id -> the job; null: it has left the list. */
  private readonly changes = new Map<string, Job | null>();

  add(id: string, job: Job | null): void {
    this.changes.set(id, job);
  }

  clear(): void {
    this.changes.clear();
  }

  /** The pages with these changes. `accepts`: whether a job that the pages do not have belongs to them. */
  applied(data: Pages, order: "newest" | "oldest", accepts: boolean): Pages {
    let pages = data;
    for (const [id, job] of this.changes) {
      if (job === null) pages = withoutJob(pages, id);
      else if (accepts || isListed(pages, id)) pages = withJob(pages, job, order);
    }
    return pages;
  }
}
