// What the screens read, as queries with their keys. Live events change the cached answers (jobs/list.ts, job/live.ts).
import { infiniteQueryOptions, keepPreviousData, type QueryClient, type QueryKey, queryOptions, replaceEqualDeep } from "@tanstack/react-query";
import type { Pages } from "../jobs/list.ts";
import { client, dataOf, type Schemas } from "./client.ts";
import type { Job, JobEvent } from "./types.ts";

export const PAGE_SIZE = 100;

/** Has answers read again, also a first one that is on its way: `invalidateQueries` leaves that as it is. */
export async function readAgain(queries: QueryClient, queryKey: QueryKey): Promise<void> {
  const first = queries.getQueryCache().findAll({ queryKey, fetchStatus: "fetching", predicate: (query) => query.state.data === undefined });
  await Promise.allSettled(first.map((query) => query.promise));
  await queries.invalidateQueries({ queryKey });
}

/** Changes an answer that is here. It stays as old as it was, and marked if it is to be read again: `setQueryData` takes it for one that was read now. */
export function change<T>(queries: QueryClient, queryKey: QueryKey, apply: (data: T) => T): void {
  const query = queries.getQueryCache().find<T>({ queryKey });
  if (query?.state.data === undefined) return;
  const data = apply(query.state.data);
  if (data !== query.state.data) query.setState({ data });
}

export interface JobsFilter {
  q: string;
  metrics: string[];
  order: "newest" | "oldest";
  /** "": the user's own; "*": all, for administrators. */
  tenant: string;
}

export const jobsKey = (filter: JobsFilter) => ["jobs", filter.q, filter.metrics.join(), filter.order, filter.tenant] as const;

/** `current`: the pages with what has changed since the server made the answer. */
export const jobsQuery = (filter: JobsFilter, current: (pages: Pages) => Pages) =>
  infiniteQueryOptions({
    queryKey: jobsKey(filter),
    queryFn: async ({ pageParam, signal }) => {
      const answer = await client.GET("/v1/jobs", {
        params: {
          query: {
            limit: PAGE_SIZE,
            order: filter.order,
            ...(filter.q ? { q: filter.q } : {}),
            ...(filter.tenant ? { tenant: filter.tenant } : {}),
            ...(filter.metrics.length > 0 ? { metrics: filter.metrics.join() } : {}),
            ...(pageParam ? { after: pageParam } : {}),
          },
        },
        signal,
      });
      return { ...dataOf(answer), isOld: answer.response.headers.has("Age") };
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
    structuralSharing: (known, next) => replaceEqualDeep(known, current(next as Pages)),
  });

const job_id = (id: string) => ({ params: { path: { job_id: id } } });

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: ["job", id],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/jobs/{job_id}", { ...job_id(id), signal })),
    structuralSharing: (known, next) => newer(known as Job | undefined, next as Job),
  });

/** The later state of a job. An answer that was on its way may be older than what the live stream has brought since. */
function newer(known: Job | undefined, next: Job): Job {
  return known && known.updated > next.updated ? { ...next, ...known, ...(next.spec ? { spec: next.spec } : {}) } : next;
}

export const historyQuery = (id: string) =>
  queryOptions({
    queryKey: ["history", id],
    queryFn: async ({ signal }) =>
      dataOf(await client.GET("/v1/jobs/{job_id}/history", { ...job_id(id), signal })).events,
    structuralSharing: (known, next) => together(known as JobEvent[] | undefined, next as JobEvent[]),
  });

/** The events of both, in order: an answer that was on its way may lack those that the live stream has brought since. */
function together(known: JobEvent[] | undefined, next: JobEvent[]): JobEvent[] {
  const present = new Set(next.map((event) => event.seq));
  const missing = (known ?? []).filter((event) => !present.has(event.seq));
  return missing.length === 0 ? next : [...next, ...missing].sort((one, other) => one.seq - other.seq);
}

export const explainQuery = (id: string) =>
  queryOptions({
    queryKey: ["explain", id],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/jobs/{job_id}/explain", { ...job_id(id), signal })),
  });

export const progressQuery = (id: string) =>
  queryOptions({
    queryKey: ["progress", id],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/jobs/{job_id}/progress", { ...job_id(id), signal })),
  });

export interface SeriesWindow {
  names?: string[];
  attempt?: number;
  maxPoints?: number;
  fromStep?: number;
  toStep?: number;
  since?: string;
  until?: string;
}

export const seriesQuery = (id: string, window: SeriesWindow) =>
  queryOptions({
    queryKey: ["series", id, window],
    queryFn: async ({ signal }) =>
      dataOf(
        await client.GET("/v1/jobs/{job_id}/metrics", {
          params: {
            path: { job_id: id },
            query: {
              series: true,
              max_points: window.maxPoints ?? 1000,
              ...(window.names ? { name: window.names } : {}),
              ...(window.attempt === undefined ? {} : { attempt: window.attempt }),
              ...(window.fromStep === undefined ? {} : { from_step: window.fromStep }),
              ...(window.toStep === undefined ? {} : { to_step: window.toStep }),
              ...(window.since ? { since: window.since } : {}),
              ...(window.until ? { until: window.until } : {}),
            },
          },
          signal,
        }),
      ) as Schemas["GetSeriesReply"],
  });

/** The curves that a job's page shows first. They never become stale: the live stream adds the points since then. */
export const curvesQuery = (id: string) => queryOptions({ ...seriesQuery(id, {}), staleTime: Number.POSITIVE_INFINITY });

export const artifactsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: ["artifacts", id],
    queryFn: async ({ pageParam, signal }) =>
      dataOf(
        await client.GET("/v1/jobs/{job_id}/artifacts", {
          params: { path: { job_id: id }, query: { limit: 500, ...(pageParam ? { after: pageParam } : {}) } },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next ?? undefined,
  });

/** One file by its path, looked for in its folder; null: there is none. */
export const artifactQuery = (id: string, path: string) =>
  queryOptions({
    queryKey: ["artifact of address", id, path],
    queryFn: async ({ signal }) => {
      const prefix = path.slice(0, path.lastIndexOf("/") + 1);
      if (!prefix.startsWith("attempts/")) return null;
      let after: string | null | undefined;
      do {
        const query = { prefix, limit: 1000, ...(after ? { after } : {}) };
        const page = dataOf(await client.GET("/v1/jobs/{job_id}/artifacts", { params: { path: { job_id: id }, query }, signal }));
        const entry = page.artifacts.find((other) => other.path === path);
        if (entry) return entry;
        after = page.next;
      } while (after);
      return null;
    },
  });

const LIVE_MS = 3000;
const HOLDING = ["PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING"];
const HELD_FIELDS = "name,user,tenant,status,since,learners,resources";

export type HoldingJob = Pick<Job, "id" | "name" | "user" | "tenant" | "status" | "since" | "learners" | "resources">;

const of = (tenant: string | undefined) => ({ params: { query: tenant === undefined ? {} : { tenant } } });

export const queueQuery = (tenant: string | undefined) =>
  queryOptions({
    queryKey: ["queue", tenant],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/queue", { ...of(tenant), signal })).waiting,
    refetchInterval: LIVE_MS,
  });

export const clusterQuery = (tenant: string | undefined) =>
  queryOptions({
    queryKey: ["cluster", tenant],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/cluster", { ...of(tenant), signal })),
    refetchInterval: LIVE_MS,
  });

/** Jobs that hold hardware: the newest, at most as many as an answer has. */
export const holdingQuery = (tenant: string | undefined) =>
  queryOptions({
    queryKey: ["holding", tenant],
    queryFn: async ({ signal }) => {
      const query = { ...of(tenant).params.query, status: [...HOLDING], limit: 500, fields: HELD_FIELDS };
      return dataOf(await client.GET("/v1/jobs", { params: { query }, signal })) as { jobs: HoldingJob[]; next: string | null };
    },
    refetchInterval: LIVE_MS,
  });

const DAY_MS = 86_400_000;

/** What jobs held within the last days, by tenant and user. */
export const usageQuery = (tenant: string | undefined, days: number) =>
  queryOptions({
    queryKey: ["usage", tenant, days],
    queryFn: async ({ signal }) => {
      const query = { ...of(tenant).params.query, since: new Date(Date.now() - days * DAY_MS).toISOString() };
      return dataOf(await client.GET("/v1/usage", { params: { query }, signal }));
    },
    placeholderData: keepPreviousData,
    staleTime: 60_000,
  });

export const quarantineQuery = () =>
  queryOptions({
    queryKey: ["quarantine"],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/quarantine", { signal })),
    staleTime: 30_000,
  });

export const keysQuery = () =>
  queryOptions({
    queryKey: ["keys"],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/keys", { signal })),
  });

export const secretsQuery = () =>
  queryOptions({
    queryKey: ["secrets"],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/secrets", { signal })).secrets,
  });

export const storageQuery = () =>
  queryOptions({
    queryKey: ["storage"],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/storage", { signal })),
    staleTime: 60_000,
  });

export const frameworksQuery = () =>
  queryOptions({
    queryKey: ["frameworks"],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/frameworks", { signal })).frameworks,
    staleTime: Number.POSITIVE_INFINITY,
  });
