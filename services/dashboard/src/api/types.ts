// Names of the API's answers, as the screens use them.
import type { components } from "./schema.ts";

type Schemas = components["schemas"];

export type ApiKey = Schemas["ApiKey"];
export type KeySession = Schemas["KeySession"];
export type JobMetric = Schemas["JobMetric"];
export type Job = Schemas["Job"];
export type JobEvent = Schemas["JobEvent"];
export type JobLine = Schemas["JobLine"];
export type JobPoint = Schemas["JobPoint"];
export type JobSeries = Schemas["JobSeries"];
export type JobArtifact = Schemas["JobArtifact"];
export type JobPlan = Schemas["JobPlan"];
export type JobProgress = Schemas["JobProgress"];
export type JobExplanation = Schemas["JobExplanation"];

export type GpuUse = Schemas["GpuUse"];
export type UserUsage = Schemas["UserUsage"];
export type LearnerUsage = Schemas["LearnerUsage"];
export type StartupStep = Schemas["StartupStep"];
export type StatisticsGroup = Schemas["StatisticsGroup"];

const RUNS = new Set(["PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING"]);
const ENDED = new Set(["COMPLETED", "FAILED", "KILLED"]);

export const runs = (status: string): boolean => RUNS.has(status);
export const hasEnded = (status: string): boolean => ENDED.has(status);
export const isLive = (status: string): boolean => RUNS.has(status) || status === "QUEUED";
