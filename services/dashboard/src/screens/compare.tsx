// Curves of several jobs over one another, statistics of groups of them (computed by the server), and what differs.
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useMemo } from "react";
import { client, dataOf } from "../api/client.ts";
import { jobQuery, progressQuery, seriesQuery } from "../api/queries.ts";
import type { Job } from "../api/types.ts";
import { Chart, type Line } from "../charts/chart.tsx";
import { curveOf, smoothed, xOf } from "../charts/series.ts";
import { differences } from "../compare/differences.ts";
import { ComparedJobs, comparedQuery, labelOf } from "../compare/jobs.tsx";
import { AllMetrics } from "../compare/metrics.tsx";
import { bandsOf, grouping, groupName, statisticsQuery } from "../compare/statistics.ts";
import { count, msOf, number, plural, valueOf } from "../format.ts";
import { CurveTools, xKindOf } from "../job/curves.tsx";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";

/** Jobs of an address; those of a filter are more (compare/jobs.tsx). */
const MOST_JOBS = 50;
const MOST_DRAWN = 24;
/** Jobs whose metrics are offered: jobs that are compared mostly report the same ones. */
const MOST_NAMING = 8;
const MOST_COLUMNS = 50;

export function CompareScreen() {
  const search = useSearch({ from: "/compare" });
  const navigate = useNavigate({ from: "/compare" });
  const chosen = useMemo(() => [...new Set((search.jobs ?? "").split(",").filter(Boolean))].slice(0, MOST_JOBS), [search.jobs]);
  // Of a filter, e.g. a group of jobs, the newest are shown; its statistics are of all.
  const filter = chosen.length === 0 ? search.q : undefined;
  const listed = useQuery({ ...comparedQuery(filter ?? ""), enabled: filter !== undefined });
  const ids = useMemo(() => (filter === undefined ? chosen : (listed.data?.jobs.map((job) => job.id) ?? [])), [filter, chosen, listed.data]);
  useEffect(() => {
    document.title = "Compare · Weft";
  }, []);
  const patch = (next: Partial<typeof search>, replace = true): void => void navigate({ to: "/compare", search: (now) => ({ ...now, ...next }), replace });

  const jobs = useQueries({ queries: chosen.map((id) => ({ ...jobQuery(id), staleTime: 10_000 })) });
  const loaded = filter === undefined ? jobs.flatMap((job) => (job.data ? [job.data as Job] : [])) : ((listed.data?.jobs ?? []) as Job[]);
  const failed = jobs.find((job) => job.error);
  const drawn = ids.slice(0, MOST_DRAWN);
  // The names first: the points of one metric only are read, however many metrics the jobs have.
  const reported = useQueries({ queries: ids.slice(0, MOST_NAMING).map((id) => ({ ...progressQuery(id), staleTime: 10_000 })) });
  const names = [...new Set(reported.flatMap((answer) => Object.keys(answer.data?.latest ?? {})))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const pending = reported.some((answer) => answer.isPending);
  const metric = search.metric ?? (names.includes("loss") ? "loss" : pending ? undefined : names[0]);
  const window = { names: metric === undefined ? [] : [metric], maxPoints: 500 };
  const series = useQueries({ queries: drawn.map((id) => ({ ...seriesQuery(id, window), enabled: metric !== undefined, staleTime: 10_000 })) });
  const kind = xKindOf(search);
  const weight = Number(search.smooth ?? 0) || 0;

  const lines = drawn.flatMap((id, index): Line[] => {
    const job = loaded.find((other) => other.id === id);
    const parts = series[index]?.data?.series.filter((part) => part.name === metric) ?? [];
    return parts.slice(0, 1).map((part) => {
      const curve = curveOf(part);
      const start = job ? msOf(job.attempt.started) || msOf(job.created) : 0;
      return { label: labelOf(job, loaded, id), x: xOf(curve, kind, start), y: smoothed(curve.y, weight), colour: index };
    });
  });

  const remove = (id: string): void => patch({ jobs: ids.filter((other) => other !== id).join(",") });
  if (listed.error) return <ErrorNote error={listed.error} retry={() => void listed.refetch()} />;
  if (filter !== undefined && listed.isPending) return <Loading what="jobs" />;
  if (ids.length === 0)
    return (
      <section className="screen padded">
        <h1>Compare</h1>
        <Empty title="Nothing to compare yet">
          <p>
            {filter === undefined ? null : "No job matches the filter. "}Select jobs in the <Link to="/jobs">list</Link> (with <kbd>x</kbd>), then press Compare (<kbd>c</kbd>).
          </p>
        </Empty>
      </section>
    );
  return (
    <section className="screen padded" aria-labelledby="compare-title">
      <div className="screen-head">
        <h1 id="compare-title">Compare {plural(ids.length, "job")}</h1>
        {filter === undefined ? null : (
          <Link to="/jobs" search={{ q: filter }} className="tag">
            {filter}
          </Link>
        )}
        {names.length > 0 ? (
          <label className="check-label">
            Metric
            <select value={metric} onChange={(event) => patch({ metric: event.target.value })}>
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        ) : null}
      </div>
      {failed ? <ErrorNote error={failed.error} /> : null}
      {metric === undefined ? pending ? <Loading what="metrics" /> : null : series.some((answer) => answer.isPending) ? <Loading what="curves" /> : null}
      {metric ? (
        <>
          <CurveTools view={search} onView={patch} />
          <Chart title={`${metric} of each job`} lines={lines} xKind={kind} log={search.log === "1"} zoom={null} onZoom={() => undefined} height={260} />
          {ids.length > drawn.length ? <p className="faint">The curves of the first {count(drawn.length)} jobs are drawn.</p> : null}
          <Groups ids={ids} filter={filter} jobs={loaded} metric={metric} group={search.group} log={search.log === "1"} onGroup={(group) => patch({ group })} />
        </>
      ) : null}
      <h2>Jobs</h2>
      {listed.data?.more ? <p className="faint">The newest {count(ids.length)} are shown. Mean and spread are of all jobs that match.</p> : null}
      <ComparedJobs jobs={loaded} {...(filter === undefined ? { onRemove: remove } : {})} />
      {loaded.length > 1 ? <Differences jobs={loaded} /> : null}
      {names.length > 1 && ids.length > 1 ? <AllMetrics names={names} ids={ids} filter={filter} group={search.group} shown={search.all === "1"} onShown={(shown) => patch({ all: shown ? "1" : undefined })} /> : null}
      {ids.length === 2 && ids[0] && ids[1] ? <CodeDifferences a={ids[0]} b={ids[1]} /> : null}
    </section>
  );
}

function Groups({ ids, filter, jobs, metric, group, log, onGroup }: { ids: string[]; filter: string | undefined; jobs: Job[]; metric: string; group: string | undefined; log: boolean; onGroup: (group: string | undefined) => void }) {
  const { except, by } = grouping(group);
  const statistics = useQuery({ ...statisticsQuery({ ids, filter, metric, group }), enabled: ids.length > 1 });
  const lines = useMemo(() => bandsOf(statistics.data), [statistics.data]);
  if (ids.length < 2) return null;
  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const fields = String(form.get("fields") ?? "").replaceAll(/\s+/g, "");
    onGroup(fields ? `${String(form.get("kind"))}:${fields}` : undefined);
  };
  const suggested = differences(jobs).map((row) => row.path).filter((path) => path !== "name");
  return (
    <>
      <div className="screen-head">
        <h2>Mean and spread</h2>
        <form className="tools" key={group} onSubmit={submit}>
          <select name="kind" defaultValue={by ? "by" : "except"} aria-label="Kind of groups">
            <option value="except">Groups: all equal but for</option>
            <option value="by">Groups: by the value of</option>
          </select>
          <input name="fields" list="differing" defaultValue={(by ?? except ?? []).join(",")} placeholder="e.g. env.SEED; empty: one group" aria-label="Fields of the spec" spellCheck={false} />
          <datalist id="differing">
            {suggested.map((path) => (
              <option key={path} value={path} />
            ))}
          </datalist>
          <button type="submit" className="button compact">
            Group
          </button>
        </form>
      </div>
      {statistics.error ? <ErrorNote error={statistics.error} /> : null}
      {statistics.data ? (
        <>
          <Chart title={`${metric}: mean ± standard deviation`} lines={lines} xKind="step" log={log} zoom={null} onZoom={() => undefined} height={240} />
          <table className="plain">
            <caption className="sr-only">Statistics at the last step of each group</caption>
            <thead>
              <tr>
                <th scope="col">Group</th>
                <th scope="col" className="right">Jobs</th>
                <th scope="col" className="right">Last step</th>
                <th scope="col" className="right">n</th>
                <th scope="col" className="right">Mean</th>
                <th scope="col" className="right">Std</th>
                <th scope="col" className="right">Min</th>
                <th scope="col" className="right">Max</th>
              </tr>
            </thead>
            <tbody>
              {statistics.data.groups.map((part) => (
                <tr key={part.jobs.join()}>
                  <th scope="row">{groupName(part)}</th>
                  <td className="right">{part.jobs.length}</td>
                  <td className="right">{part.steps.length > 0 ? count(part.steps.at(-1) ?? 0) : "–"}</td>
                  <td className="right">{part.n.at(-1) ?? "–"}</td>
                  {([part.mean, part.std, part.min, part.max] as const).map((column, index) => (
                    <td key={["mean", "std", "min", "max"][index]} className="right" data-exact={column.at(-1)} title={String(column.at(-1) ?? "")}>
                      {column.length > 0 ? number(valueOf(column.at(-1) ?? Number.NaN)) : "–"}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
          {statistics.data.without.length > 0 ? <p className="faint">{plural(statistics.data.without.length, "job")} without this metric.</p> : null}
        </>
      ) : null}
    </>
  );
}

function Differences({ jobs: all }: { jobs: Job[] }) {
  const jobs = useMemo(() => all.slice(0, MOST_COLUMNS), [all]);
  const rows = useMemo(() => differences(jobs), [jobs]);
  return (
    <>
      <h2>What differs in the specs</h2>
      {all.length > jobs.length ? <p className="faint">Of the first {count(jobs.length)} jobs.</p> : null}
      {rows.length === 0 ? (
        <p className="faint">Nothing: the specs are equal.</p>
      ) : (
        <div className="wide-table" tabIndex={0} role="region" aria-label="Differences of the specs">
          <table className="plain">
            <thead>
              <tr>
                <th scope="col">Field</th>
                {jobs.map((job) => (
                  <th key={job.id} scope="col">
                    {labelOf(job, jobs, job.id)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.path}>
                  <th scope="row" className="mono">
                    {row.path}
                  </th>
                  {row.values.map((value, index) => (
                    <td key={jobs[index]?.id} className="mono">
                      {value ?? <span className="faint">–</span>}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function CodeDifferences({ a, b }: { a: string; b: string }) {
  const diff = useQuery({
    queryKey: ["diff", a, b],
    queryFn: async ({ signal }) => dataOf(await client.GET("/v1/diff", { params: { query: { a, b } }, signal })),
    staleTime: 60_000,
  });
  if (diff.error) return <ErrorNote error={diff.error} />;
  if (!diff.data) return null;
  const { files } = diff.data.code;
  return (
    <>
      <h2>What differs in the code</h2>
      {files.length === 0 ? (
        <p className="faint">Nothing: the code is equal.</p>
      ) : (
        <ul className="plain-list">
          {files.map((file) => (
            <li key={file.path}>
              <b>{file.change}</b> <span className="mono">{file.path}</span>
            </li>
          ))}
        </ul>
      )}
      {diff.data.environment.length > 0 ? (
        <>
          <h2>What differs in the environment</h2>
          <ul className="plain-list">
            {diff.data.environment.map((row) => (
              <li key={row.path}>
                <span className="mono">{row.path}</span>: {String(row.a ?? "–")} → {String(row.b ?? "–")}
              </li>
            ))}
          </ul>
        </>
      ) : null}
    </>
  );
}
