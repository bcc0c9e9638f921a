// Names of the API's answers, as the screens use them.
import type { components } from "./schema.ts";

type Schemas = components["schemas"];

/** What the list says of one metric of a job. */
export interface JobMetric {
  name: string;
  context: Record<string, string>;
  rank: number;
  count: number;
  last: number | string;
  last_step: number | null;
  min: number | string | null;
  min_step: number | null;
  max: number | string | null;
  max_step: number | null;
  best: number | string | null;
  best_step: number | null;
}
export type Job = Schemas["Job"] & { metrics?: JobMetric[] };
export type JobEvent = Schemas["JobEvent"];
export type JobLine = Schemas["JobLine"];
export type JobPoint = Schemas["JobPoint"];
export type JobSeries = Schemas["JobSeries"];
export type JobEnd = Schemas["JobEnd"];
export type JobArtifact = Schemas["JobArtifact"];
export type JobPlan = Schemas["JobPlan"];
export type JobProgress = Schemas["JobProgress"];
export type JobExplanation = Schemas["JobExplanation"];

export interface StatisticsGroup {
  key: Record<string, unknown>;
  jobs: string[];
  steps: number[];
  n: number[];
  mean: (number | string)[];
  std: (number | string)[];
  min: (number | string)[];
  max: (number | string)[];
}
export interface Statistics {
  groups: StatisticsGroup[];
  without: string[];
  truncated: boolean;
}
export interface Diff {
  spec: { path: string; a?: unknown; b?: unknown }[];
  code: { a?: string; b?: string; files: { path: string; change: string }[] };
  environment: { path: string; a?: unknown; b?: unknown }[];
}

const RUNS = new Set(["PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING"]);
const ENDED = new Set(["COMPLETED", "FAILED", "KILLED"]);

export const runs = (status: string): boolean => RUNS.has(status);
export const hasEnded = (status: string): boolean => ENDED.has(status);
export const isLive = (status: string): boolean => RUNS.has(status) || status === "QUEUED";
