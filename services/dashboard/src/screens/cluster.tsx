// The queue: who waits, at which place and for what. The cluster: nodes and the hardware in use.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { clusterQuery, frameworksQuery, queueQuery, storageQuery } from "../api/queries.ts";
import { bytes, count, percent, plural } from "../format.ts";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";
import { STATUSES, StatusBadge } from "../ui/status.tsx";
import { Elapsed } from "../ui/time.tsx";

export function QueueScreen() {
  const queue = useQuery(queueQuery());
  useEffect(() => {
    document.title = "Queue · Weft";
  }, []);
  return (
    <section className="screen padded" aria-labelledby="queue-title">
      <div className="screen-head">
        <h1 id="queue-title">Queue</h1>
        {queue.data ? <span className="faint">{queue.data.length === 0 ? "" : `${plural(queue.data.length, "job")} waiting`}</span> : null}
      </div>
      {queue.error ? <ErrorNote error={queue.error} retry={() => void queue.refetch()} /> : null}
      {queue.isPending ? <Loading what="the queue" /> : null}
      {queue.data?.length === 0 ? (
        <Empty title="No job waits">
          <p>
            A job that is <Link to="/submit">submitted</Link> now starts at once, if the <Link to="/cluster">cluster</Link> has room for it.
          </p>
        </Empty>
      ) : null}
      {queue.data && queue.data.length > 0 ? (
        <table className="plain">
          <caption className="sr-only">Jobs that wait, in the order of the queue</caption>
          <thead>
            <tr>
              <th scope="col" className="right">Place</th>
              <th scope="col">Job</th>
              <th scope="col" className="wide-only">User</th>
              <th scope="col">Waits for</th>
              <th scope="col" className="right">Since</th>
            </tr>
          </thead>
          <tbody>
            {queue.data.map((job) => (
              <tr key={job.id}>
                <td className="right strong">{job.position ?? "–"}</td>
                <td className="name">
                  <Link to="/jobs/$id" params={{ id: job.id }} className="strong">
                    {job.name || job.id}
                  </Link>
                </td>
                <td className="wide-only nowrap">{job.user}</td>
                <td>
                  <b>{job.pending_reason || "its turn"}</b> <span className="soft">{job.message}</span>
                </td>
                <td className="right">
                  <Elapsed from={job.created} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </section>
  );
}

export function ClusterScreen() {
  const cluster = useQuery(clusterQuery());
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
                  <Gauge label="CPU cores" used={data.used.cpus} total={data.total.cpus} write={(value) => String(Number(value.toFixed(1)))} />
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
                    <Link to="/jobs" search={{ q: `status=${status}` }}>
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
                  {node.gpus > 0 ? (
                    <p>
                      <span className="slots" aria-hidden="true">
                        {Array.from({ length: Math.min(64, Math.ceil(node.gpus)) }, (_, index) => (
                          <span key={index} className="slot" />
                        ))}
                      </span>
                      {plural(node.gpus, "GPU")} {node.gpu_type}
                    </p>
                  ) : null}
                  <p className="soft">
                    {Number(node.cpus.toFixed(1))} CPU cores · {bytes(node.memory)}
                  </p>
                </section>
              ))}
            </div>
          ) : (
            <p className="faint">The cluster does not answer now.</p>
          )}
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
