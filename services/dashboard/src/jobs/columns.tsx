// Columns of the job list. Those of metrics are made from the names that the address has.
import { type ColumnDef, createColumnHelper } from "@tanstack/react-table";
import { Link } from "@tanstack/react-router";
import type { Job, JobMetric } from "../api/types.ts";
import { count, msOf, number, valueOf } from "../format.ts";
import { ranOf } from "../job/phases.ts";
import { nameOf } from "./list.ts";
import { Sparkline } from "./sparklines.tsx";
import { StatusBadge } from "../ui/status.tsx";
import { Ago, Elapsed } from "../ui/time.tsx";

const column = createColumnHelper<Job>();

/** Widths as grid tracks. `phone`: shown on narrow screens, too. */
export interface Look {
  track: string;
  align?: "right";
  phone?: boolean;
}

const metricOf = (job: Job, name: string): JobMetric | undefined =>
  job.metrics?.find((metric) => metric.name === nameOf(name));

export function columnsOf(metrics: string[], shown: { tenant: boolean; gpus: boolean }): ColumnDef<Job>[] {
  const all = [
    column.accessor("status", {
      header: "Status",
      cell: ({ row }) => <StatusBadge status={row.original.status} />,
      meta: { track: "116px", phone: true } satisfies Look,
    }),
    column.accessor("name", {
      header: "Name",
      cell: ({ row }) => <NameCell job={row.original} />,
      meta: { track: "minmax(140px, 2.2fr)", phone: true } satisfies Look,
    }),
    column.accessor("user", {
      header: "User",
      cell: ({ row }) => row.original.user,
      meta: { track: "minmax(60px, .8fr)" } satisfies Look,
    }),
    ...(shown.tenant
      ? [column.accessor("tenant", { header: "Tenant", meta: { track: "minmax(80px, .7fr)" } satisfies Look })]
      : []),
    ...metrics.map((name, index) =>
      column.accessor((job) => sortable(metricOf(job, name)), {
        id: `metric:${name}`,
        header: nameOf(name),
        sortUndefined: "last",
        cell: ({ row }) => (
          <>
            {index === 0 ? <Sparkline id={row.id} /> : null}
            <MetricCell metric={metricOf(row.original, name)} />
          </>
        ),
        meta: { track: index === 0 ? "minmax(var(--curve-track), .8fr)" : "minmax(112px, .8fr)", align: "right" } satisfies Look,
      }),
    ),
    column.accessor("learners", {
      header: "Learners",
      cell: ({ row }) => row.original.learners || "",
      meta: { track: "76px", align: "right" } satisfies Look,
    }),
    ...(shown.gpus
      ? [
          column.accessor((job) => job.resources.gpus, {
            id: "gpus",
            header: "GPUs",
            cell: ({ row }) => row.original.resources.gpus || "–",
            meta: { track: "64px", align: "right" } satisfies Look,
          }),
        ]
      : []),
    column.accessor((job) => msOf(job.created), {
      id: "created",
      header: "Submitted",
      cell: ({ row }) => <Ago time={row.original.created} />,
      meta: { track: "88px", align: "right", phone: true } satisfies Look,
    }),
    column.accessor(ranMs, {
      id: "ran",
      header: "Ran for",
      sortUndefined: "last",
      cell: ({ row }) => <Ran job={row.original} />,
      meta: { track: "84px", align: "right" } satisfies Look,
    }),
  ];
  return all as ColumnDef<Job>[];
}

function sortable(metric: JobMetric | undefined): number | undefined {
  const value = metric?.best ?? metric?.last;
  return value === undefined || Number.isNaN(valueOf(value)) ? undefined : valueOf(value);
}

function ranMs(job: Job): number | undefined {
  const ran = ranOf(job);
  return ran && (ran.to ? msOf(ran.to) : Date.now()) - msOf(ran.from);
}

function Ran({ job }: { job: Job }) {
  const ran = ranOf(job);
  return ran ? <Elapsed from={ran.from} to={ran.to} /> : null;
}

function NameCell({ job }: { job: Job }) {
  const why = job.status === "QUEUED" ? job.pending_reason : job.reason;
  return (
    <span className="name-cell">
      <Link to="/jobs/$id" params={{ id: job.id }} className="strong" title={`${job.name} · ${job.id}`}>
        {job.name || job.id}
      </Link>
      {why ? (
        <span className="why" title={job.message}>
          {why}
        </span>
      ) : null}
      {job.tags.slice(0, 3).map((tag) => (
        <span key={tag} className="tag">
          {tag}
        </span>
      ))}
    </span>
  );
}

function MetricCell({ metric }: { metric: JobMetric | undefined }) {
  if (!metric) return <span className="faint">–</span>;
  const best = metric.best ?? metric.last;
  const step = metric.best === null ? metric.last_step : metric.best_step;
  return (
    <span title={`last ${number(valueOf(metric.last))} at step ${metric.last_step ?? "?"}; ${count(metric.count)} points`}>
      {number(valueOf(best))}
      {step === null ? null : <span className="faint"> @ {count(step)}</span>}
    </span>
  );
}
