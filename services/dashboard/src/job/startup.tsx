// Where the time of a job's start-up went: each step, with its place in the whole; and what is fetched now.
import type { Job, JobProgress, StartupStep } from "../api/types.ts";
import { isLive } from "../api/types.ts";
import { bytes, plural, tenths } from "../format.ts";
import { useNow } from "../ui/time.tsx";

const LABELS: Record<string, string> = {
  queue: "In the queue",
  schedule: "Placed on nodes",
  image: "Container images",
  code: "Code",
  data: "Data",
  environment: "Environment",
  checkpoint: "Checkpoint",
  launch: "Learners launched",
  first_step: "First step",
};
const MOST_FETCHING = 3;

interface Row {
  step: string;
  label: string;
  fromMs: number;
  toMs: number;
  open: boolean;
}

export function StartUp({ job }: { job: Job }) {
  const now = useNow();
  const rows = rowsOf(job.startup ?? [], isLive(job.status) ? now : null);
  if (rows.length === 0) return null;
  const from = Math.min(...rows.map((row) => row.fromMs));
  const total = Math.max(1, ...rows.map((row) => row.toMs - from));
  const longest = rows.reduce((most, row) => (row.toMs - row.fromMs > most.toMs - most.fromMs ? row : most));
  return (
    <details className="start-up">
      <summary>
        Start-up <b>{tenths(total)}</b>
        {rows.length > 1 ? (
          <span className="faint">
            {" "}
            · longest: {longest.label.toLowerCase()} {tenths(longest.toMs - longest.fromMs)}
          </span>
        ) : null}
      </summary>
      <table className="start-up-steps">
        <caption className="sr-only">Steps of the start-up of attempt {job.attempt.number}</caption>
        <tbody>
          {rows.map((row) => (
            <tr key={row.step}>
              <th scope="row">{row.label}</th>
              <td className="right">
                {tenths(row.toMs - row.fromMs)}
                {row.open ? " …" : ""}
              </td>
              <td className="start-up-track" aria-hidden="true">
                <span className={`start-up-bar s-${row.step}`} style={{ left: `${((row.fromMs - from) / total) * 100}%`, width: `${((row.toMs - row.fromMs) / total) * 100}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

/** `nowMs`: steps without an end last until then; null: the attempt ended before them, and they are left out. */
function rowsOf(steps: readonly StartupStep[], nowMs: number | null): Row[] {
  return steps.flatMap((step) => {
    const fromMs = Date.parse(step.began);
    const endMs = step.ended ? Date.parse(step.ended) : nowMs;
    return endMs === null ? [] : [{ step: step.step, label: LABELS[step.step] ?? step.step, fromMs, toMs: Math.max(fromMs, endMs), open: !step.ended }];
  });
}

/** Bytes that are there and bytes in all, of each learner that fetches. */
export function Fetching({ progress }: { progress: JobProgress | undefined }) {
  const fetching = progress?.fetching ?? [];
  if (fetching.length === 0) return null;
  return (
    <ul className="fetching">
      {fetching.slice(0, MOST_FETCHING).map((entry) => (
        <li key={entry.learner}>
          {entry.learner}: {entry.message || LABELS[entry.step] || entry.step}
          {entry.done_bytes === null ? null : (
            <span className="faint">
              {" "}
              · {bytes(entry.done_bytes)}
              {entry.total_bytes === null ? "" : ` of ${bytes(entry.total_bytes)}`}
            </span>
          )}
          {entry.done_bytes === null || !entry.total_bytes ? null : <progress max={1} value={Math.min(1, entry.done_bytes / entry.total_bytes)} aria-label={`${entry.learner}: ${LABELS[entry.step] ?? entry.step}`} />}
        </li>
      ))}
      {fetching.length > MOST_FETCHING ? <li className="faint">and {plural(fetching.length - MOST_FETCHING, "learner")} more</li> : null}
    </ul>
  );
}
