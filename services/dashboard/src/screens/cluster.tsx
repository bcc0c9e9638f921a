// The cluster: its nodes, what of them is in use and by which jobs, storage and frameworks.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { clusterQuery, frameworksQuery, type HoldingJob, holdingQuery, quarantineQuery, storageQuery } from "../api/queries.ts";
import { GpuHours } from "../cluster/hours.tsx";
import { IdleGpus } from "../cluster/idle.tsx";
import { session, tenantsOf } from "../api/session.ts";
import { bytes, count, percent, plural } from "../format.ts";
import { useStore } from "../store.ts";
import { ErrorNote, Loading } from "../ui/notes.tsx";
import { STATUSES, StatusBadge } from "../ui/status.tsx";
import { Ago, Elapsed } from "../ui/time.tsx";

export function ClusterScreen() {
  const tenants = tenantsOf(useStore(session));
  const cluster = useQuery(clusterQuery(tenants));
  const holding = useQuery(holdingQuery(tenants));
  const storage = useQuery(storageQuery());
  const frameworks = useQuery(frameworksQuery());
  useEffect(() => {
    document.title = "Cluster · Weft";
  }, []);
  const { data } = cluster;
  return (
    <section className="screen padded" aria-labelledby="cluster-title">
      <div className="screen-head">
        <h1 id="cluster-title">Cluster</h1>
        {data?.isolation ? <span className="faint">learners are isolated by: {data.isolation}</span> : null}
      </div>
      {cluster.error ? <ErrorNote error={cluster.error} retry={() => void cluster.refetch()} /> : null}
      {cluster.isPending ? <Loading what="the cluster" /> : null}
      {data ? (
        <>
          <div className="cards">
            <section className="card" aria-label="Hardware in use">
              <h2>Hardware in use</h2>
              {data.total && data.used ? (
                <>
                  {data.total.gpus > 0 ? <Gauge label="GPUs" used={data.used.gpus} total={data.total.gpus} write={count} /> : null}
                  <Gauge label="CPU cores" used={data.used.cpus} total={data.total.cpus} write={cores} />
                  <Gauge label="Memory" used={data.used.memory} total={data.total.memory} write={bytes} />
                </>
              ) : (
                <p className="faint">The cluster does not answer now.</p>
              )}
            </section>
            <section className="card" aria-label="Jobs by status">
              <h2>Jobs</h2>
              <ul className="tally">
                {STATUSES.filter((status) => data.jobs[status]).map((status) => (
                  <li key={status}>
                    <Link to="/jobs" search={{ q: `status=${status}`, tenant: tenants }}>
                      <StatusBadge status={status} />
                    </Link>
                    <b>{count(data.jobs[status] ?? 0)}</b>
                  </li>
                ))}
              </ul>
              {Object.values(data.jobs).every((n) => n === 0) ? <p className="faint">No jobs yet.</p> : null}
            </section>
            {storage.data ? (
              <section className="card" aria-label="Storage">
                <h2>Storage of tenant {storage.data.tenant}</h2>
                <p className="big">{bytes(storage.data.bytes)}</p>
                <ul className="tally">
                  {Object.entries(storage.data.kinds).map(([kind, size]) => (
                    <li key={kind}>
                      <span>{kind}</span>
                      <b>{bytes(size)}</b>
                    </li>
                  ))}
                </ul>
              </section>
            ) : null}
          </div>
          <h2>Nodes</h2>
          {data.nodes ? (
            <div className="cards nodes">
              {data.nodes.map((node) => (
                <section key={node.name} className={`card node${node.ready ? "" : " down"}`} aria-label={`Node ${node.name}`}>
                  <h3>
                    {node.name} <span className={node.ready ? "ready" : "not-ready"}>{node.ready ? "ready" : "not ready"}</span>
                  </h3>
                  {node.gpus > 0 ? <Slots used={node.used.gpus} total={node.gpus} type={node.gpu_type} /> : null}
                  <Gauge label="CPU cores" used={node.used.cpus} total={node.cpus} write={cores} />
                  <Gauge label="Memory" used={node.used.memory} total={node.memory} write={bytes} />
                </section>
              ))}
            </div>
          ) : (
            <p className="faint">The cluster does not answer now.</p>
          )}
          <IdleGpus uses={data.gpu_jobs} window={data.gpu_idle_s} tenants={tenants !== undefined} />
          {holding.data ? <Holding jobs={holding.data.jobs} more={holding.data.next !== null} tenants={tenants !== undefined} /> : null}
          <GpuHours tenants={tenants} />
          {tenants === undefined ? null : <Quarantine />}
          {frameworks.data ? (
            <>
              <h2>Frameworks</h2>
              <table className="plain">
                <caption className="sr-only">Frameworks that a job may name</caption>
                <thead>
                  <tr>
                    <th scope="col">Name in a spec</th>
                    <th scope="col">Version</th>
                    <th scope="col" className="wide-only">About</th>
                    <th scope="col" className="right">Size</th>
                  </tr>
                </thead>
                <tbody>
                  {frameworks.data.map((framework) => (
                    <tr key={framework.id}>
                      <th scope="row">{[framework.name, ...framework.aliases].join(", ")}</th>
                      <td>{framework.version}</td>
                      <td className="wide-only soft">{framework.description}</td>
                      <td className="right">{bytes(framework.size_mb * 1e6)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </>
          ) : null}
        </>
      ) : null}
    </section>
  );
}

const cores = (value: number): string => String(Number(value.toFixed(1)));
const MOST_SLOTS = 64;

/** A square for each GPU: held by a job, held in part, or free. */
function Slots({ used, total, type }: { used: number; total: number; type: string }) {
  const shown = Math.min(MOST_SLOTS, Math.ceil(total));
  const share = (index: number): number => used * (shown / total) - index;
  return (
    <div>
      <span className="slots" aria-hidden="true">
        {Array.from({ length: shown }, (_, index) => (
          <span key={index} className={`slot${share(index) > 0.99 ? " used" : share(index) > 0.01 ? " part" : ""}`} />
        ))}
      </span>
      <b>{cores(used)}</b> of {plural(total, "GPU")} {type} in use
    </div>
  );
}

/** The jobs that hold hardware; those with most GPUs first. */
function Holding({ jobs, more, tenants }: { jobs: readonly HoldingJob[]; more: boolean; tenants: boolean }) {
  if (jobs.length === 0) return null;
  const sorted = jobs.toSorted((a, b) => b.resources.gpus - a.resources.gpus || b.resources.cpus - a.resources.cpus || (a.since < b.since ? -1 : 1));
  return (
    <>
      <h2>Jobs that hold hardware</h2>
      <table className="plain holding">
        <caption className="sr-only">Jobs that hold hardware, those with most GPUs first</caption>
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">Status</th>
            <th scope="col" className="wide-only">User</th>
            {tenants ? <th scope="col" className="wide-only">Tenant</th> : null}
            <th scope="col" className="right wide-only">Learners</th>
            <th scope="col" className="right">GPUs</th>
            <th scope="col" className="right">CPU cores</th>
            <th scope="col" className="right wide-only">Memory</th>
            <th scope="col" className="right wide-only">Since</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((job) => (
            <tr key={job.id}>
              <th scope="row" className="name">
                <Link to="/jobs/$id" params={{ id: job.id }}>
                  {job.name || job.id}
                </Link>
              </th>
              <td>
                <StatusBadge status={job.status} />
              </td>
              <td className="wide-only nowrap">{job.user}</td>
              {tenants ? <td className="wide-only nowrap">{job.tenant}</td> : null}
              <td className="right wide-only">{count(job.learners)}</td>
              <td className="right">{job.resources.gpus || "–"}</td>
              <td className="right">{cores(job.resources.cpus)}</td>
              <td className="right wide-only">{bytes(job.resources.memory)}</td>
              <td className="right wide-only">
                <Elapsed from={job.since} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {more ? <p className="faint">The newest {count(jobs.length)} are listed.</p> : null}
    </>
  );
}

/** Stored data that cannot be read, for administrators; nothing if there is none. */
function Quarantine() {
  const { data } = useQuery(quarantineQuery());
  if (!data || (data.held.length === 0 && data.silent.length === 0)) return null;
  return (
    <>
      <h2>Damaged data</h2>
      {data.silent.length > 0 ? <p className="note">These services did not answer, and may know of more: {data.silent.join(", ")}.</p> : null}
      {data.held.map((held) => (
        <div key={`${held.service}${held.place}`} className="note bad">
          <span>
            <b>
              {held.kind} {held.place}
            </b>
            : {held.reason}. {held.advice} <span className="nowrap">({held.service}, <Ago time={held.since} />)</span>
          </span>
        </div>
      ))}
    </>
  );
}

function Gauge({ label, used, total, write }: { label: string; used: number; total: number; write: (value: number) => string }) {
  const share = total > 0 ? used / total : 0;
  return (
    <div className="gauge">
      <span>{label}</span>
      <meter min={0} max={1} value={Math.min(1, share)} aria-label={`${label} in use`}>
        {percent(share)}
      </meter>
      <span className="gauge-value">
        <b>{write(used)}</b> of {write(total)}
      </span>
    </div>
  );
}
