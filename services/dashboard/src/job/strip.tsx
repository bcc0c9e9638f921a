// The strip on top of a job: its state, the reason in words, what to do, how far it is; and how its time was spent.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { client, dataOf } from "../api/client.ts";
import { bytes, count, duration, number, percent, plural, tenths, valueOf } from "../format.ts";
import type { Job, JobEvent, JobExplanation, JobProgress } from "../api/types.ts";
import { hasEnded, isLive } from "../api/types.ts";
import { toneOf, StatusBadge } from "../ui/status.tsx";
import { Ago, Elapsed, useNow } from "../ui/time.tsx";
import { plain } from "../logs/ansi.ts";
import { splitLearner } from "./learners.tsx";
import { attemptsOf, type Attempt } from "./phases.ts";
import { Commands } from "./commands.tsx";
import { Fetching, StartUp } from "./startup.tsx";

export function Strip({ job, explanation, progress }: { job: Job; explanation: JobExplanation | undefined; progress: JobProgress | undefined }) {
  const live = isLive(job.status);
  // What a training that goes well, or has gone well, does is plain from the badge.
  const plain = job.status === "PROCESSING" || job.status === "COMPLETED";
  const why = explanation?.message || job.message || "";
  const position = explanation?.queue_position;
  const share = live ? progress?.progress : null;
  const latest = Object.values(progress?.latest ?? {}).slice(0, 4);
  return (
    <div className={`strip tone-${toneOf(job.status)}`}>
      <div className="strip-main">
        <StatusBadge status={job.status} large />
        <span className="strip-for">
          {hasEnded(job.status) ? <Ago time={job.since} /> : <>for <Elapsed from={job.since} /></>}
        </span>
        {position === undefined ? null : <strong className="place">Place {position} in the queue</strong>}
        {job.desired === "halt" && live && job.status !== "HALTING" ? <span>halt was requested</span> : null}
        {job.desired === "kill" && live ? <span>kill was requested</span> : null}
        <dl className="facts">
          {latest.map((point) => (
            <div key={point.name}>
              <dt>{point.name}</dt>
              <dd>{number(valueOf(point.value))}</dd>
            </div>
          ))}
        </dl>
      </div>
      {explanation && !(plain && !why) ? (
        <p className="strip-why">
          {explanation.summary ? `The job ${explanation.summary}` : why}
        </p>
      ) : null}
      {explanation && !plain && explanation.hints.length > 0 ? (
        <ul className="hints">
          {explanation.hints.map((hint) => (
            <li key={hint}>
              <Commands text={hint} />
            </li>
          ))}
        </ul>
      ) : null}
      {job.status === "FAILED" ? <LastWords job={job} /> : null}
      {live ? <Fetching progress={progress} /> : null}
      {live ? <Bars progress={progress} /> : null}
      {share === null || share === undefined ? null : (
        <div className="progress">
          <progress max={1} value={share} aria-label="Progress" />
          <span>{percent(share)}</span>
          {progress?.eta_ms ? <span className="faint">about {duration(progress.eta_ms)} left</span> : null}
        </div>
      )}
    </div>
  );
}

const MOST_BARS = 4;

/** Progress bars that learners draw in their terminals now. */
function Bars({ progress }: { progress: JobProgress | undefined }) {
  const bars = progress?.bars ?? [];
  if (bars.length === 0) return null;
  return (
    <ul className="bars" aria-label="Progress bars of learners">
      {bars.slice(0, MOST_BARS).map((bar) => (
        <li key={bar.learner}>
          <span className="faint">{bar.learner}</span> <code>{plain(bar.text)}</code>
        </li>
      ))}
      {bars.length > MOST_BARS ? <li className="faint">and {plural(bars.length - MOST_BARS, "learner")} more</li> : null}
    </ul>
  );
}

/** The last lines of the learner that decided the failure, first of all what it wrote to stderr. */
function LastWords({ job }: { job: Job }) {
  const learner = job.verdict?.learner ?? "";
  const [role, rank] = splitLearner(learner);
  const lines = useQuery({
    queryKey: ["last-words", job.id, job.attempt.number],
    queryFn: async ({ signal }) => {
      const query = { tail: LAST_LINES, attempt: job.attempt.number, ...(learner ? { role, rank: Number(rank) } : {}) };
      const read = async (stream?: string) =>
        dataOf(await client.GET("/v1/jobs/{job_id}/logs", { params: { path: { job_id: job.id }, query: { ...query, ...(stream ? { stream } : {}) } }, signal })).lines;
      const errors = await read("stderr");
      return errors.length > 0 ? errors : read();
    },
    staleTime: 60_000,
  });
  if (!lines.data || lines.data.length === 0) return null;
  const last = lines.data.at(-1);
  return (
    <div className="last-words">
      <pre tabIndex={0} aria-label={`Last lines of ${learner || "the job"}`}>
        {lines.data.map((line) => plain(line.text)).join("\n")}
      </pre>
      <Link to="/jobs/$id" params={{ id: job.id }} search={{ tab: "logs", line: String(last?.seq ?? "") }}>
        Show them in the log
      </Link>
    </div>
  );
}

const LAST_LINES = 8;

export function Timeline({ job, events }: { job: Job; events: JobEvent[] }) {
  const attempts = attemptsOf(events);
  const shown = attempts.slice(-3);
  return (
    <div className="timeline">
      {shown.map((attempt) => (
        <AttemptBar key={`${attempt.number}-${attempt.phases[0]?.fromMs}`} attempt={attempt} alone={attempts.length === 1} />
      ))}
      {attempts.length > shown.length ? <p className="faint">{plural(attempts.length - shown.length, "earlier attempt")} in the events</p> : null}
      <StartUp job={job} />
    </div>
  );
}

function AttemptBar({ attempt, alone }: { attempt: Attempt; alone: boolean }) {
  const now = useNow();
  const last = attempt.phases.at(-1);
  const from = attempt.phases[0]?.fromMs ?? 0;
  const to = last?.toMs ?? Math.max(now, last?.fromMs ?? 0);
  const total = Math.max(1, to - from);
  return (
    <div className="attempt">
      {alone ? null : <span className="attempt-name">Attempt {attempt.number}</span>}
      <div className="bar" aria-hidden="true">
        {attempt.phases.map((phase) => {
          const ms = (phase.toMs ?? to) - phase.fromMs;
          return <span key={phase.fromMs + phase.status} className={`phase p-${phase.status.toLowerCase()}`} style={{ flexGrow: Math.max(ms / total, 0.004) }} title={`${phase.label}: ${duration(ms)}`} />;
        })}
      </div>
      <ol className="phases">
        {attempt.phases.map((phase) => (
          <li key={phase.fromMs + phase.status}>
            <span className={`dot p-${phase.status.toLowerCase()}`} aria-hidden="true" />
            {phase.label} <b>{tenths((phase.toMs ?? to) - phase.fromMs)}</b>
          </li>
        ))}
      </ol>
    </div>
  );
}

export function Facts({ job }: { job: Job }) {
  const facts: [string, React.ReactNode][] = [
    ["User", job.user],
    ["Framework", job.framework || "–"],
    ["Learners", count(job.learners)],
    ["Hardware", hardware(job)],
    ["Submitted", <Ago key="t" time={job.created} />],
    ["Attempt", attemptWords(job)],
  ];
  return (
    <dl className="facts job-facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function attemptWords(job: Job): string {
  const { retries, restarts, preemptions } = job.counters;
  const again = [
    retries > 0 ? plural(retries, "retry").replace("retrys", "retries") : "",
    restarts > 0 ? plural(restarts, "restart") : "",
    preemptions > 0 ? plural(preemptions, "preemption") : "",
  ].filter(Boolean);
  return `${job.attempt.number || "–"}${again.length > 0 ? ` (${again.join(", ")})` : ""}`;
}

export function hardware(job: Pick<Job, "resources">): string {
  const { cpus, memory, gpus } = job.resources;
  return [gpus ? plural(gpus, "GPU") : "", plural(cpus, "CPU"), bytes(memory)].filter(Boolean).join(" · ");
}
