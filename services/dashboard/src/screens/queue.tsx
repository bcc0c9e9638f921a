// The queue: the jobs that wait, at which place and for what. Administrators see those of all tenants, as places count them.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { queueQuery } from "../api/queries.ts";
import { session, tenantsOf } from "../api/session.ts";
import { plural } from "../format.ts";
import { useStore } from "../store.ts";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";
import { Elapsed } from "../ui/time.tsx";

export function QueueScreen() {
  const tenants = tenantsOf(useStore(session));
  const queue = useQuery(queueQuery(tenants));
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
              {tenants === undefined ? null : <th scope="col" className="wide-only">Tenant</th>}
              <th scope="col">Waits for</th>
              <th scope="col" className="right wide-only">Since</th>
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
                {tenants === undefined ? null : <td className="wide-only nowrap">{job.tenant}</td>}
                <td>
                  <b className="nowrap">{job.pending_reason || "its turn"}</b> <span className="soft">{job.message}</span>
                </td>
                <td className="right wide-only">
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
