// The phases of an attempt, from the history: how long it was queued, started, trained. Pure.
import type { Job, JobEvent } from "../api/types.ts";

export interface Phase {
  status: string;
  label: string;
  fromMs: number;
  /** null: it is in this phase now. */
  toMs: number | null;
}

export interface Attempt {
  /** 0: before the first one. */
  number: number;
  phases: Phase[];
}

const LABELS: Record<string, string> = {
  QUEUED: "Queued",
  PENDING: "Admitted, starting learners",
  DOWNLOADING: "Environment, code and data",
  PROCESSING: "Training",
  STORING: "Storing results",
  HALTING: "Halting",
  HALTED: "Halted",
};
const FINAL = new Set(["COMPLETED", "FAILED", "KILLED"]);

/** Attempts, oldest first. The wait in the queue belongs to the attempt that ends it. */
export function attemptsOf(events: readonly JobEvent[]): Attempt[] {
  const attempts: Attempt[] = [];
  let current: Attempt = { number: 1, phases: [] };
  const end = (ms: number): void => {
    const last = current.phases.at(-1);
    if (last && last.toMs === null) last.toMs = ms;
  };
  for (const event of events) {
    if (event.to === "RESUMED") continue;
    const ms = Date.parse(event.time);
    end(ms);
    if (event.to === "QUEUED" && current.phases.some((phase) => phase.status !== "QUEUED")) {
      attempts.push(current);
      current = { number: current.number + 1, phases: [] };
    }
    if (event.attempt > 0) current.number = event.attempt + (event.to === "QUEUED" ? 1 : 0);
    if (!FINAL.has(event.to)) current.phases.push({ status: event.to, label: LABELS[event.to] ?? event.to, fromMs: ms, toMs: null });
  }
  return [...attempts, current].filter((attempt) => attempt.phases.length > 0);
}

/** From when to when the latest attempt ran; null: it still does. Undefined while the job waits for one. */
export function ranOf(job: Pick<Job, "attempt" | "status" | "finished" | "since">): { from: string; to: string | null } | undefined {
  if (!job.attempt.started || job.status === "QUEUED") return undefined;
  return { from: job.attempt.started, to: job.finished ?? (job.status === "HALTED" ? job.since : null) };
}
