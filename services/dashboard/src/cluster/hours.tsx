// GPU-hours by tenant and user: what jobs held within the last days. The server adds them up (services/api/use_cases/usage.py).
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { usageQuery } from "../api/queries.ts";
import type { UserUsage } from "../api/types.ts";
import { absolute, count, hours, percent, plural } from "../format.ts";
import { ErrorNote, Loading } from "../ui/notes.tsx";
import { Symbol } from "../ui/icons.tsx";

/** Word of the address -> days. */
const WINDOWS = new Map([
  ["7d", 7],
  ["30d", 30],
  ["90d", 90],
]);
const USUAL = "30d";
const LONGEST = "90d";
const FIRST = 20;

/** `tenants`: "*" for administrators, who see all; undefined: the user's own. */
export function GpuHours({ tenants }: { tenants: string | undefined }) {
  const { window: given } = useSearch({ from: "/cluster" });
  const navigate = useNavigate({ from: "/cluster" });
  const chosen = given !== undefined && WINDOWS.has(given) ? given : USUAL;
  const usage = useQuery(usageQuery(tenants, WINDOWS.get(chosen) ?? 30));
  const { data } = usage;
  const choose = (name: string): void => void navigate({ search: { window: name === USUAL ? undefined : name }, replace: true, resetScroll: false });
  return (
    <section className="hours" aria-labelledby="hours-title" aria-busy={usage.isFetching}>
      <div className="tools">
        <h2 id="hours-title">GPU-hours</h2>
        <div className="segments" role="group" aria-label="Time">
          {[...WINDOWS].map(([name, days]) => (
            <button key={name} type="button" aria-pressed={name === chosen} onClick={() => choose(name)}>
              {days} days
            </button>
          ))}
        </div>
        {data && data.users.length > 0 ? (
          <a className="button quiet compact" href={fileOf(tenants, data)} download>
            <Symbol name="download" /> Download CSV
          </a>
        ) : null}
      </div>
      {usage.error ? <ErrorNote error={usage.error} retry={() => void usage.refetch()} /> : null}
      {usage.isPending ? <Loading what="GPU-hours" /> : null}
      {data?.users.length === 0 ? (
        <p className="faint">
          No job held hardware in this time. {chosen === LONGEST ? "" : "Choose a longer one, or "}
          <Link to="/submit">{chosen === LONGEST ? "Submit" : "submit"} a job</Link>.
        </p>
      ) : null}
      {data && data.users.length > 0 ? <Users users={data.users} tenants={tenants !== undefined} /> : null}
      {data ? (
        <p className="faint">
          {absolute(data.since)} to {absolute(data.until)}: from the admission of each job until all of its hardware was given back, used or not.
          {data.unreadable > 0 ? ` ${plural(data.unreadable, "job")} cannot be read and ${data.unreadable === 1 ? "is" : "are"} not counted.` : ""}
        </p>
      ) : null}
    </section>
  );
}

function Users({ users, tenants }: { users: readonly UserUsage[]; tenants: boolean }) {
  const [all, setAll] = useState(false);
  const sum = (of: (user: UserUsage) => number): number => users.reduce((total, user) => total + of(user), 0);
  // Without GPUs the bars compare CPU-hours, by which the server sorts then.
  const kind = sum((user) => user.gpu_hours) > 0 ? "gpu_hours" : "cpu_hours";
  const whole = sum((user) => user[kind]);
  const shown = all ? users : users.slice(0, FIRST);
  return (
    <>
      <table className="plain">
        <caption className="sr-only">GPU-hours and CPU-hours by {tenants ? "tenant and " : ""}user, those with most first</caption>
        <thead>
          <tr>
            <th scope="col">User</th>
            {tenants ? <th scope="col">Tenant</th> : null}
            <th scope="col" className="right wide-only">Jobs</th>
            <th scope="col" className="right">GPU-hours</th>
            <th scope="col" className="right wide-only">CPU-hours</th>
            <th scope="col">Share</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((user) => (
            <tr key={`${user.tenant}/${user.user}`}>
              <th scope="row">{user.user}</th>
              {tenants ? <td>{user.tenant}</td> : null}
              <td className="right wide-only">{count(user.jobs)}</td>
              <td className="right">{hours(user.gpu_hours)}</td>
              <td className="right wide-only">{hours(user.cpu_hours)}</td>
              <td className="share">
                <meter min={0} max={1} value={whole > 0 ? user[kind] / whole : 0} aria-label={`Share of ${user.user}${tenants ? ` of ${user.tenant}` : ""}`}>
                  {percent(whole > 0 ? user[kind] / whole : 0)}
                </meter>
              </td>
            </tr>
          ))}
        </tbody>
        {users.length > 1 ? (
          <tfoot>
            <tr>
              <th scope="row">Total</th>
              {tenants ? <td /> : null}
              <td className="right wide-only">{count(sum((user) => user.jobs))}</td>
              <td className="right">{hours(sum((user) => user.gpu_hours))}</td>
              <td className="right wide-only">{hours(sum((user) => user.cpu_hours))}</td>
              <td />
            </tr>
          </tfoot>
        ) : null}
      </table>
      {users.length > FIRST && !all ? (
        <button type="button" className="button compact" onClick={() => setAll(true)}>
          Show all {count(users.length)}
        </button>
      ) : null}
    </>
  );
}

/** Address of the file with what the table shows. */
function fileOf(tenants: string | undefined, { since, until }: { since: string; until: string }): string {
  const words = new URLSearchParams({ since, until, format: "csv", ...(tenants === undefined ? {} : { tenant: tenants }) });
  return `./v1/usage?${words.toString()}`;
}
