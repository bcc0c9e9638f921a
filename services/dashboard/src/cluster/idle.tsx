// GPUs that jobs hold and do not use. The server decides which are idle (services/api/gpu_use.py).
import { Link } from "@tanstack/react-router";
import type { GpuUse } from "../api/types.ts";
import { number, plural } from "../format.ts";
import { Elapsed } from "../ui/time.tsx";

/** `window`: seconds for which idle GPUs were not in use. */
export function IdleGpus({ uses, window, tenants }: { uses: readonly GpuUse[] | undefined; window: number; tenants: boolean }) {
  if (uses?.length === 0) return null;
  const idle = uses?.filter((use) => use.idle > 0) ?? [];
  const unmeasured = uses?.filter((use) => use.used === null).length ?? 0;
  const span = window >= 120 ? `${number(window / 60)} minutes` : plural(window, "second");
  return (
    <>
      <h2>GPUs allocated and idle</h2>
      {uses === undefined ? <p className="faint">Not known: the metrics service does not answer now.</p> : null}
      {uses !== undefined && idle.length === 0 ? <p className="faint">None: each learner with GPUs was in use within the last {span}, or has just begun.</p> : null}
      {idle.length > 0 ? (
        <table className="plain idle-gpus">
          <caption className="sr-only">Jobs whose GPUs were not in use for {span}</caption>
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col" className="wide-only">User</th>
              {tenants ? <th scope="col" className="wide-only">Tenant</th> : null}
              <th scope="col" className="right">Idle GPUs</th>
              <th scope="col" className="right">GPUs in use</th>
              <th scope="col" className="right wide-only">CPU cores in use</th>
              <th scope="col" className="right wide-only">Trains for</th>
            </tr>
          </thead>
          <tbody>
            {idle.map((use) => (
              <tr key={use.job}>
                <th scope="row" className="name">
                  <Link to="/jobs/$id" params={{ id: use.job }}>
                    {use.name || use.job}
                  </Link>
                </th>
                <td className="wide-only nowrap">{use.user}</td>
                {tenants ? <td className="wide-only nowrap">{use.tenant}</td> : null}
                <td className="right">
                  {number(use.idle)} of {number(use.gpus)}
                </td>
                <td className="right">{use.used === null ? "not measured" : number(use.used)}</td>
                <td className="right wide-only">{use.cpus === null ? "–" : number(use.cpus)}</td>
                <td className="right wide-only">
                  <Elapsed from={use.since} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
      {uses === undefined ? null : (
        <p className="faint">
          {idle.length > 0 ? `In use: the most within the last ${span}. ` : ""}
          {unmeasured > 0 ? `The GPUs of ${plural(unmeasured, "job")} are not measured: the use of CPUs says if they are idle.` : ""}
        </p>
      )}
    </>
  );
}
