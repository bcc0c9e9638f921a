// What people do with jobs, for a single job and for several. Changes show at once; the live stream confirms them.
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { client } from "../api/client.ts";
import { hasEnded, isLive, type Job } from "../api/types.ts";
import { plural } from "../format.ts";
import { confirm } from "../ui/confirm.tsx";
import { say, sayError } from "../ui/toast.tsx";

export type Action = "halt" | "resume" | "kill" | "delete";

/** Whether the platform would accept it now. A job is resumed or deleted only once it has released its hardware. */
export function allows(job: Job, action: Action): boolean {
  const ends = job.desired === "kill" || hasEnded(job.status);
  if (action === "halt") return !ends && job.desired === "run" && isLive(job.status);
  if (action === "resume") return job.status === "HALTED" && job.at_rest;
  if (action === "kill") return !ends;
  return job.at_rest;
}

const DONE: Record<Action, string> = {
  halt: "will be halted; results and checkpoints are kept",
  resume: "is queued again",
  kill: "will be killed",
  delete: "was deleted",
};

const CONFIRMED: Partial<Record<Action, { title: string; text: string; action: string }>> = {
  kill: {
    title: "Kill",
    text: "The learners are stopped at once. Nothing that they have not stored yet is kept. This cannot be undone; halt keeps results and checkpoints.",
    action: "Kill",
  },
  delete: {
    title: "Delete",
    text: "The results, logs and metrics are erased after the operator's retention time. This cannot be undone.",
    action: "Delete",
  },
};

/** Returns a function that does the action after its confirmation; it resolves to true if all jobs accepted it. */
export function useActions(): (action: Action, jobs: Job[]) => Promise<boolean> {
  const queries = useQueryClient();
  return async (action, jobs) => {
    const fit = jobs.filter((job) => allows(job, action));
    const what = fit.length === 1 ? fit[0]?.name || fit[0]?.id || "" : plural(fit.length, "job");
    if (fit.length === 0) {
      say(`None of the selected jobs can be ${action === "halt" ? "halted" : `${action}${action.endsWith("e") ? "d" : "ed"}`} now`);
      return false;
    }
    const question = CONFIRMED[action];
    if (question && !(await confirm({ ...question, title: `${question.title} ${what}?` }))) return false;
    const outcomes = await Promise.allSettled(fit.map((job) => apply(action, job.id)));
    const failure = outcomes.find((outcome) => outcome.status === "rejected");
    if (failure) sayError(`Could not ${action} ${what}`, failure.reason);
    else say(`${what} ${DONE[action]}`);
    refresh(queries, fit);
    return !failure;
  };
}

async function apply(action: Action, id: string): Promise<void> {
  const params = { params: { path: { job_id: id } } };
  if (action === "delete") await client.DELETE("/v1/jobs/{job_id}", params);
  else if (action === "halt") await client.POST("/v1/jobs/{job_id}/halt", params);
  else if (action === "resume") await client.POST("/v1/jobs/{job_id}/resume", params);
  else await client.POST("/v1/jobs/{job_id}/kill", params);
}

function refresh(queries: QueryClient, jobs: Job[]): void {
  for (const job of jobs)
    for (const part of ["job", "explain"]) void queries.invalidateQueries({ queryKey: [part, job.id] });
  void queries.invalidateQueries({ queryKey: ["jobs"] });
}
