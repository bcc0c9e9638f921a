// Which lines of a log the page shows, and the request that reads them.
import { client, dataOf } from "../api/client.ts";
import { splitLearner } from "../job/learners.tsx";

export interface LogView {
  rank?: string | undefined;
  attempt?: string | undefined;
  stream?: string | undefined;
  search?: string | undefined;
  /** "time": all learners merged by time; else as stored. */
  order?: string | undefined;
  line?: string | undefined;
}

export interface LineQuery {
  role?: string;
  rank?: number;
  attempt?: number;
  stream?: string;
  search?: string;
  order?: "time";
}

export function queryOf(view: LogView): LineQuery {
  const [role, rank] = view.rank ? splitLearner(view.rank) : ["", ""];
  return {
    ...(view.rank ? { role, rank: Number(rank) } : {}),
    ...(view.attempt ? { attempt: Number(view.attempt) } : {}),
    ...(view.stream ? { stream: view.stream } : {}),
    ...(view.search ? { search: view.search } : {}),
    ...(view.order === "time" ? { order: "time" } : {}),
  };
}

export interface LinePage {
  after?: number;
  before?: number;
  limit?: number;
  tail?: number;
}

export const fetchLines = async (id: string, query: LineQuery & LinePage, signal?: AbortSignal) =>
  dataOf(await client.GET("/v1/jobs/{job_id}/logs", { params: { path: { job_id: id }, query }, ...(signal ? { signal } : {}) }));

/** Address of the file with all lines that match. The browser saves it as it comes, so that a page never holds it. */
export function fileOf(id: string, query: LineQuery): string {
  const words = Object.entries({ ...query, download: true }).map(([name, value]) => [name, String(value)]);
  return `./v1/jobs/${id}/logs?${new URLSearchParams(words).toString()}`;
}
