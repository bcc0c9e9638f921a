// The history of a job, newest first.
import type { JobEvent } from "../api/types.ts";
import { absolute, clock } from "../format.ts";
import { StatusBadge } from "../ui/status.tsx";
import { Ago } from "../ui/time.tsx";

export function Events({ events }: { events: JobEvent[] }) {
  return (
    <table className="plain events">
      <caption className="sr-only">History, newest first</caption>
      <thead>
        <tr>
          <th scope="col" className="right">#</th>
          <th scope="col">Time</th>
          <th scope="col">Status</th>
          <th scope="col">Reason</th>
          <th scope="col">By</th>
          <th scope="col" className="right">Attempt</th>
        </tr>
      </thead>
      <tbody>
        {events.toReversed().map((event) => (
          <tr key={event.seq}>
            <td className="right faint">{event.seq}</td>
            <td title={absolute(event.time)}>
              <span className="mono">{clock(event.time)}</span>{" "}
              <span className="faint">
                <Ago time={event.time} />
              </span>
            </td>
            <td>
              <StatusBadge status={event.to} />
            </td>
            <td>
              {event.reason ? <b>{event.reason}</b> : null} {event.message}
            </td>
            <td className="faint">{event.actor}</td>
            <td className="right">{event.attempt || ""}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
