// One job: what it does now and why, how its time was spent, curves, learners, log, history, files, spec.
import * as Tabs from "@radix-ui/react-tabs";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useCallback, useEffect, useRef, useState } from "react";
import type { JobLine } from "../api/types.ts";
import { ApiError } from "../api/problem.ts";
import { type Action, allows, useActions } from "../job/actions.ts";
import { Artifacts } from "../job/artifacts.tsx";
import { Curves } from "../job/curves.tsx";
import { Events } from "../job/events.tsx";
import { Learners } from "../job/learners.tsx";
import { useExplanation, useLiveJob, useProgress } from "../job/live.ts";
import { Facts, Strip, Timeline } from "../job/strip.tsx";
import { LogPanel } from "../logs/panel.tsx";
import { Symbol } from "../ui/icons.tsx";
import { useShortcuts } from "../ui/keys.ts";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";
import { say, sayError } from "../ui/toast.tsx";

const Spec = lazy(() => import("../job/spec.tsx").then((part) => ({ default: part.Spec })));

const TABS = [
  ["curves", "Curves"],
  ["logs", "Log"],
  ["learners", "Learners"],
  ["events", "Events"],
  ["files", "Files"],
  ["spec", "Spec"],
] as const;

/** The tag of jobs that `weft train --array` and `--repeat` submitted together. */
const GROUP = "group=";
const tagFilter = (tag: string): string => `tag="${tag.replaceAll('"', '\\"')}"`;

export function JobScreen() {
  const { id } = useParams({ from: "/jobs/$id" });
  return <JobPage key={id} id={id} />;
}

function JobPage({ id }: { id: string }) {
  const search = useSearch({ from: "/jobs/$id" });
  const navigate = useNavigate({ from: "/jobs/$id" });
  const act = useActions();
  const tab = TABS.some(([name]) => name === search.tab) ? (search.tab ?? "curves") : "curves";

  const lines = useRef<((lines: JobLine[]) => void) | null>(null);
  const [logAfter, setLogAfter] = useState<number | null>(null);
  const onLines = useCallback((fresh: JobLine[]) => lines.current?.(fresh), []);
  const live = useLiveJob(id, tab === "logs" && logAfter !== null ? { after: logAfter, onLines } : null);
  const job = live.job.data;
  const explanation = useExplanation(id, job?.status);
  const progress = useProgress(id);

  useEffect(() => {
    document.title = job ? `${job.name} · ${job.status.toLowerCase()} · Weft` : "Job · Weft";
  }, [job]);
  // Changes the address as it is now: what is drawn may be older, when two controls are pressed one after the other.
  const patch = (next: Partial<typeof search>, replace = true): void =>
    void navigate({ to: "/jobs/$id", params: { id }, search: (now) => ({ ...now, ...next }), replace });
  const goTo = (name: string): void => {
    if (name !== "logs") setLogAfter(null);
    patch({ tab: name === "curves" ? undefined : name }, false);
  };
  const tabs = useRef<HTMLDivElement>(null);
  const moved = useRef(false);
  const shown = job !== undefined;
  useEffect(() => {
    // On a phone the last tabs are beyond the edge. The first one is in view until then, and to look costs a layout of the page.
    if (tab === TABS[0][0] && !moved.current) return;
    moved.current = true;
    tabs.current?.querySelector("[data-state=active]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [tab, shown]);
  useShortcuts(Object.fromEntries(TABS.map(([name], index) => [String(index + 1), () => goTo(name)])));

  if (live.job.error && !job)
    return live.job.error instanceof ApiError && live.job.error.status === 404 ? (
      <Empty title="There is no such job, or it was deleted">
        <p>
          <Link to="/jobs">All jobs</Link>
        </p>
      </Empty>
    ) : (
      <ErrorNote error={live.job.error} retry={() => void live.job.refetch()} />
    );
  if (!job) return <Loading what="the job" />;

  const { description = "" } = (job.spec ?? {}) as { description?: string };
  const groups = job.tags.filter((tag) => tag.startsWith(GROUP));
  const doIt = (action: Action) => async (): Promise<void> => {
    if ((await act(action, [job])) && action === "delete") void navigate({ to: "/jobs" });
  };
  return (
    <section className={`screen job tab-${tab}`} aria-labelledby="job-name">
      <header className="job-head">
        <div className="job-title">
          <h1 id="job-name">{job.name || job.id}</h1>
          <button
            type="button"
            className="quiet mono job-id"
            title="Copy the id"
            onClick={() => navigator.clipboard.writeText(job.id).then(() => say("Id copied"), (error: unknown) => sayError("Not copied", error))}
          >
            {job.id} <Symbol name="copy" size={12} />
          </button>
          {job.tags.map((tag) => (
            <Link key={tag} to="/jobs" search={{ q: tagFilter(tag) }} className="tag">
              {tag}
            </Link>
          ))}
        </div>
        <div className="actions">
          {groups.map((tag) => (
            <Link key={tag} to="/compare" search={{ q: tagFilter(tag), group: "except:env.SEED" }} className="button" title={`Compare the jobs of ${tag.slice(GROUP.length)}`}>
              Compare group
            </Link>
          ))}
          {(["halt", "resume", "kill", "delete"] as const).map((action) =>
            allows(job, action) ? (
              <button key={action} type="button" className={`button${action === "kill" || action === "delete" ? " danger" : ""}`} onClick={() => void doIt(action)()}>
                {action[0]?.toUpperCase() + action.slice(1)}
              </button>
            ) : null,
          )}
          <Link to="/submit" search={{ from: job.id }} className="button">
            Clone
          </Link>
        </div>
      </header>
      {description ? <p className="job-description">{description}</p> : null}
      {live.damages.map((message) => (
        <p key={message} className="note bad" role="alert">
          {message}. It is tried again; what is shown may be old.
        </p>
      ))}
      <Strip job={job} explanation={explanation.data} progress={progress.data} />
      <div className="job-facts-row">
        <Facts job={job} />
        <Timeline job={job} events={live.history} />
      </div>
      <Tabs.Root value={tab} onValueChange={goTo} className="tabs" activationMode="manual">
        <Tabs.List ref={tabs} className="tab-list" aria-label="Parts of the job">
          {TABS.map(([name, label]) => (
            <Tabs.Trigger key={name} value={name} className="tab">
              {label}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        <Tabs.Content value={tab} className="tab-content" tabIndex={-1}>
          {tab === "curves" ? <Curves job={job} curves={live.curves} error={live.curvesError} pending={live.curvesPending} view={search} onView={patch} /> : null}
          {tab === "logs" ? <LogPanel job={job} view={search} onView={patch} lines={lines} onStart={setLogAfter} /> : null}
          {tab === "learners" ? <Learners job={job} curves={live.curves} usage={progress.data?.usage ?? []} /> : null}
          {tab === "events" ? <Events events={live.history} /> : null}
          {tab === "files" ? <Artifacts id={id} file={search.file} onFile={(file) => patch({ file }, false)} /> : null}
          {tab === "spec" ? (
            <Suspense fallback={null}>
              {live.job.isPlaceholderData ? <Loading what="the spec" /> : <Spec job={job} />}
            </Suspense>
          ) : null}
        </Tabs.Content>
      </Tabs.Root>
    </section>
  );
}
