// The learners of the current attempt, with phase, node, exit code and reason.
import { Link } from "@tanstack/react-router";
import { isLive, type Job, type LearnerUsage } from "../api/types.ts";
import type { Curve } from "../charts/series.ts";
import { bytes, number } from "../format.ts";
import { Empty } from "../ui/notes.tsx";
import { StatusBadge } from "../ui/status.tsx";

export function Learners({ job, curves, usage }: { job: Job; curves: ReadonlyMap<string, Curve>; usage: readonly LearnerUsage[] }) {
  const learners = Object.entries(job.attempt.placement).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  if (learners.length === 0)
    return (
      <Empty title="No learners yet">
        <p>They are shown once the job is admitted.</p>
      </Empty>
    );
  return (
    <table className="plain">
      <caption className="sr-only">Learners of attempt {job.attempt.number}</caption>
      <thead>
        <tr>
          <th scope="col">Learner</th>
          <th scope="col" className="wide-only">Node</th>
          <th scope="col">State</th>
          <th scope="col">{isLive(job.status) ? "Uses" : "Used at most"}</th>
          <th scope="col" className="wide-only">Latest values</th>
          <th scope="col">
            <span className="sr-only">Log</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {learners.map(([learner, node]) => {
          const [role, rank] = splitLearner(learner);
          const latest = [...curves.values()].filter((curve) => curve.role === role && String(curve.rank) === rank && curve.attempts.at(-1) === job.attempt.number);
          const decided = job.verdict?.learner === learner;
          return (
            <tr key={learner}>
              <th scope="row" className="name">{learner}</th>
              <td className="wide-only">{node}</td>
              <td>
                {isLive(job.status) ? <StatusBadge status={job.status} /> : decided ? decision(job) : <StatusBadge status={job.status} />}
              </td>
              <td>
                <Usage of={usage.find((entry) => String(entry.rank) === rank)} live={isLive(job.status)} />
              </td>
              <td className="wide-only">
                <ul className="values">
                  {latest.slice(0, 4).map((curve) => (
                    <li key={curve.key}>
                      <span className="faint">{curve.name}</span> {number(curve.y.at(-1) ?? Number.NaN)}
                      {curve.steps.at(-1) === null ? null : <span className="faint"> @ {curve.steps.at(-1)}</span>}
                    </li>
                  ))}
                </ul>
              </td>
              <td className="nowrap">
                <Link to="/jobs/$id" params={{ id: job.id }} search={{ tab: "logs", rank: learner }}>
                  Log
                </Link>
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

export function splitLearner(learner: string): [string, string] {
  const at = learner.lastIndexOf("-");
  return [learner.slice(0, at), learner.slice(at + 1)];
}

/** Hardware that a learner uses now, and at most on hover. What it used in the moment before its end says nothing. */
function Usage({ of, live }: { of: LearnerUsage | undefined; live: boolean }) {
  if (!of) return <span className="faint">–</span>;
  const most = amounts(of.max_cpus, of.max_memory, of.max_gpus, of.max_gpu_memory);
  return live ? <span title={`at most ${most}`}>{amounts(of.cpus, of.memory, of.gpus, of.gpu_memory)}</span> : <span>{most}</span>;
}

function amounts(cpus: number | null, memory: number | null, gpus: number | null, gpuMemory: number | null): string {
  const parts = [
    cpus === null ? "" : `${cpus.toFixed(2)} CPU`,
    memory === null ? "" : bytes(memory),
    gpus === null ? "" : `${gpus.toFixed(2)} GPU`,
    gpuMemory === null ? "" : `${bytes(gpuMemory)} of GPUs`,
  ];
  return parts.filter(Boolean).join(" · ");
}

function decision(job: Job) {
  const { exit_code: code, signal, reason } = job.verdict ?? {};
  return (
    <span>
      <b>{reason}</b>
      {code === null || code === undefined ? "" : ` · exit code ${code}`}
      {signal ? ` · signal ${signal}` : ""} · decided the end
    </span>
  );
}
