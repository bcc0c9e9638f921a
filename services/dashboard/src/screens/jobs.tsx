// All jobs: filtered by the server, read page by page, changed by the live stream, drawn only where one looks.
import { Link, useNavigate, useRouter, useSearch } from "@tanstack/react-router";
import { getCoreRowModel, getSortedRowModel, type SortingState, useReactTable, flexRender } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ApiError } from "../api/problem.ts";
import { session, tenantsOf } from "../api/session.ts";
import type { Job } from "../api/types.ts";
import { plural } from "../format.ts";
import { type Action, allows, useActions } from "../job/actions.ts";
import { columnsOf, type Look } from "../jobs/columns.tsx";
import { Filter } from "../jobs/filter.tsx";
import { nameOf } from "../jobs/list.ts";
import { useLiveList } from "../jobs/live.ts";
import { useFreshMetrics } from "../jobs/refresh.ts";
import { SparklinesContext, useSparklines } from "../jobs/sparklines.tsx";
import { useStore } from "../store.ts";
import { Symbol } from "../ui/icons.tsx";
import { useShortcuts } from "../ui/keys.ts";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";

const ROW_PX = 36;
const PHONE_ROW_PX = 58;
const PHONE = matchMedia("(max-width: 720px)");
const DEFAULT_METRICS = "loss,accuracy";

function usePhone(): boolean {
  const [phone, setPhone] = useState(PHONE.matches);
  useEffect(() => {
    const onChange = (): void => setPhone(PHONE.matches);
    PHONE.addEventListener("change", onChange);
    return () => PHONE.removeEventListener("change", onChange);
  }, []);
  return phone;
}

/** "name.asc" -> the table's sorting. */
const sortingOf = (text: string | undefined): SortingState => {
  const match = /^(.+)\.(asc|desc)$/.exec(text ?? "");
  return match?.[1] ? [{ id: match[1], desc: match[2] === "desc" }] : [];
};

const isWithin = (target: EventTarget, selector: string): boolean => target instanceof Element && target.closest(selector) !== null;

export function JobsScreen() {
  const search = useSearch({ from: "/jobs" });
  const navigate = useNavigate({ from: "/jobs" });
  const router = useRouter();
  const signedIn = useStore(session);
  const user = signedIn?.user ?? "";
  const tenants = tenantsOf(signedIn);
  const tenant = tenants === undefined ? "" : (search.tenant ?? "");
  const act = useActions();
  const phone = usePhone();
  const q = search.q ?? "";
  const metrics = useMemo(() => (search.metrics ?? DEFAULT_METRICS).split(",").filter(Boolean), [search.metrics]);
  const order = search.order === "oldest" ? "oldest" : "newest";
  const filter = useMemo(() => ({ q, metrics, order, tenant }) as const, [q, metrics, order, tenant]);
  const listing = useLiveList(filter);
  // While the first answer is tried again, why it did not come.
  const error = listing.error ?? (listing.isPending || listing.isPlaceholderData ? listing.failureReason : null);
  const shownAtFilter = listing.data === undefined && error instanceof ApiError && error.status === 400;
  const jobs = useMemo(() => listing.data?.pages.flatMap((page) => page.jobs as Job[]) ?? [], [listing.data]);
  useEffect(() => {
    document.title = q ? `${q} · Weft` : "Jobs · Weft";
  }, [q]);

  const shown = useMemo(
    () => ({
      tenant: tenant === "*" || new Set(jobs.map((job) => job.tenant)).size > 1,
      gpus: jobs.some((job) => job.resources.gpus > 0),
    }),
    [jobs, tenant],
  );
  const withValues = useMemo(() => new Set(jobs.flatMap((job) => job.metrics?.map((metric) => metric.name) ?? [])), [jobs]);
  const drawn = useMemo(
    () => (search.metrics === undefined ? metrics.filter((name) => withValues.has(nameOf(name))) : metrics),
    [metrics, search.metrics, withValues],
  );
  const columns = useMemo(() => columnsOf(drawn, shown), [drawn, shown]);
  // The same object as long as it says the same: rows, their keys and the list depend on it.
  const sorting = useMemo(() => sortingOf(search.sort), [search.sort]);
  const table = useReactTable({
    data: jobs,
    columns,
    state: { sorting },
    getRowId: (job) => job.id,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
  });
  const rows = table.getRowModel().rows;

  const patch = (next: Partial<typeof search>, replace = false): void =>
    void navigate({ to: "/jobs", search: (now) => ({ ...now, ...next }), replace });
  const sortBy = (id: string): void => {
    const now = sorting[0];
    const next = now?.id !== id ? `${id}.asc` : now.desc ? undefined : `${id}.desc`;
    patch({ sort: next }, true);
  };

  const box = useRef<HTMLDivElement>(null);
  const field = useRef<HTMLInputElement>(null);
  const rowPx = phone ? PHONE_ROW_PX : ROW_PX;
  const getItemKey = useCallback((index: number) => rows[index]?.id ?? index, [rows]);
  const estimateSize = useCallback(() => rowPx, [rowPx]);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => box.current, estimateSize, overscan: 12, getItemKey });
  const measuredPx = useRef(rowPx);
  useEffect(() => {
    // Measuring renders again, so it is done for another height only.
    if (measuredPx.current === rowPx) return;
    measuredPx.current = rowPx;
    virtual.measure();
  }, [rowPx, virtual]);
  const items = virtual.getVirtualItems();
  const onScreen = useMemo(() => new Set(items.map((item) => String(item.key))), [items]);
  useFreshMetrics(filter, jobs, onScreen);
  const sparklines = useSparklines(filter, drawn[0], jobs, onScreen);
  const lastShown = items.at(-1)?.index ?? 0;
  const { hasNextPage, isFetching, fetchNextPage, isError } = listing;
  useEffect(() => {
    // A reading of the whole list that has just begun goes on.
    if (hasNextPage && !isFetching && !isError && lastShown >= rows.length - 30) void fetchNextPage({ cancelRefetch: false });
  }, [hasNextPage, isFetching, isError, fetchNextPage, lastShown, rows.length]);

  const [active, setActive] = useState<string | null>(null);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const chosen = jobs.filter((job) => selected.has(job.id));
  const toggle = (id: string): void => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  const move = (by: number): void => {
    const now = rows.findIndex((row) => row.id === active);
    const to = Math.min(rows.length - 1, Math.max(0, now < 0 ? 0 : now + by));
    const row = rows[to];
    if (!row) return;
    setActive(row.id);
    virtual.scrollToIndex(to);
  };
  const compare = (): void =>
    void navigate({ to: "/compare", search: { jobs: chosen.map((job) => job.id).join(",") } });
  useShortcuts({
    "/": () => field.current?.focus(),
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => active && void navigate({ to: "/jobs/$id", params: { id: active } }),
    x: () => active && toggle(active),
    c: () => chosen.length > 0 && compare(),
    Escape: () => setSelected(new Set()),
  });
  const doIt = (action: Action) => async (): Promise<void> => {
    if (await act(action, chosen)) setSelected(new Set());
  };

  const tracks = `30px ${columns.map((column) => (column.meta as Look).track).join(" ")}`;
  const header = table.getHeaderGroups()[0]?.headers ?? [];

  return (
    <section className="screen jobs" aria-labelledby="jobs-title">
      <h1 id="jobs-title" className="sr-only">
        Jobs
      </h1>
      <Filter
        q={q}
        user={user}
        everyone={tenants === undefined ? undefined : tenant === "*"}
        error={error}
        field={field}
        onChange={(next) => patch({ q: next || undefined })}
        onEveryone={(everyone) => patch({ tenant: everyone ? "*" : undefined })}
      />
      {chosen.length > 0 ? (
        <div className="bulk" role="toolbar" aria-label="Selected jobs">
          <strong>{plural(chosen.length, "job")} selected</strong>
          <button type="button" className="button compact" onClick={compare}>
            Compare
          </button>
          {(["halt", "resume", "kill", "delete"] as const).map((action) =>
            chosen.some((job) => allows(job, action)) ? (
              <button key={action} type="button" className={`button compact${action === "kill" || action === "delete" ? " danger" : ""}`} onClick={() => void doIt(action)()}>
                {action[0]?.toUpperCase() + action.slice(1)}
              </button>
            ) : null,
          )}
          <button type="button" className="button quiet compact" onClick={() => setSelected(new Set())}>
            Clear
          </button>
        </div>
      ) : null}
      {error && !shownAtFilter ? <ErrorNote error={error} retry={() => void listing.refetch()} /> : null}
      <div className="table-box" ref={box} tabIndex={-1}>
        <div className="table" role="table" aria-label="Jobs" aria-rowcount={hasNextPage ? -1 : rows.length + 1}>
          <div role="rowgroup" className="table-head">
            <div role="row" className="tr" style={{ gridTemplateColumns: tracks }}>
              <span role="columnheader" className="td check">
                <span className="sr-only">Selected</span>
              </span>
              {header.map(({ id, column }) => {
                const sorted = sorting[0]?.id === id ? (sorting[0].desc ? "descending" : "ascending") : "none";
                return (
                  <span key={id} role="columnheader" aria-sort={sorted} className={`td ${(column.columnDef.meta as Look).align ?? ""}`}>
                    <button type="button" onClick={() => sortBy(id)} title="Sorts the jobs that are loaded">
                      {String(column.columnDef.header)}
                      {sorted === "none" ? null : <Symbol name={sorted === "ascending" ? "up" : "down"} size={10} />}
                    </button>
                  </span>
                );
              })}
            </div>
          </div>
          <SparklinesContext value={sparklines}>
            <div role="rowgroup" className="table-body" style={{ height: virtual.getTotalSize() }}>
              {items.map((item) => {
                const row = rows[item.index];
                if (!row) return null;
                return (
                  // The row's link does the same for keyboards and screen readers.
                  // oxlint-disable-next-line jsx-a11y/click-events-have-key-events
                  <div
                    key={item.key}
                    role="row"
                    aria-rowindex={item.index + 2}
                    className={`tr data${row.id === active ? " active" : ""}${selected.has(row.id) ? " selected" : ""}`}
                    style={{ gridTemplateColumns: tracks, transform: `translateY(${item.start}px)`, height: rowPx }}
                    onPointerDown={({ pointerType, button, target }) => {
                      // A mouse that is pressed will open the job. A finger that is put down may begin to scroll.
                      if (pointerType === "mouse" && button === 0 && !isWithin(target, "button,input,label")) void router.preloadRoute({ to: "/jobs/$id", params: { id: row.id } });
                    }}
                    onClick={(event) => {
                      if (isWithin(event.target, "a,button,input,label")) return;
                      if (getSelection()?.isCollapsed !== false) void navigate({ to: "/jobs/$id", params: { id: row.id } });
                    }}
                  >
                    <span role="cell" className="td check">
                      <input
                        type="checkbox"
                        aria-label={`Select ${row.original.name}`}
                        checked={selected.has(row.id)}
                        onChange={() => toggle(row.id)}
                      />
                    </span>
                    {row.getVisibleCells().map((cell) => {
                      const look = cell.column.columnDef.meta as Look;
                      return (
                        <span key={cell.id} role="cell" className={`td c-${cell.column.id.split(":")[0]} ${look.align ?? ""}${look.phone ? "" : " wide-only"}`}>
                          {flexRender(cell.column.columnDef.cell, cell.getContext())}
                        </span>
                      );
                    })}
                  </div>
                );
              })}
            </div>
          </SparklinesContext>
        </div>
        {listing.isPending ? <Loading what="jobs" /> : null}
        {rows.length === 0 && !listing.isPending && !hasNextPage && !listing.error ? <Nothing q={q} onAll={() => patch({ q: undefined })} /> : null}
      </div>
      <footer className="table-foot">
        <span>
          {plural(rows.length, "job")}
          {hasNextPage ? " loaded; more below" : ""}
        </span>
        <MetricNames names={search.metrics ?? DEFAULT_METRICS} onChange={(next) => patch({ metrics: next }, true)} />
      </footer>
    </section>
  );
}

function MetricNames({ names, onChange }: { names: string; onChange: (names: string | undefined) => void }) {
  return (
    <form
      key={names}
      className="metric-names wide-only"
      onSubmit={(event) => {
        event.preventDefault();
        const text = String(new FormData(event.currentTarget).get("names") ?? "").replaceAll(/\s+/g, "");
        onChange(text && text !== DEFAULT_METRICS ? text : undefined);
      }}
    >
      <label htmlFor="metric-names">Metric columns</label>
      <input id="metric-names" name="names" defaultValue={names} spellCheck={false} title="Names with commas; loss:min or f1:max says which value is best" />
    </form>
  );
}

function Nothing({ q, onAll }: { q: string; onAll: () => void }) {
  if (q)
    return (
      <Empty title="No job matches this filter">
        <p>
          <button type="button" className="button" onClick={onAll}>
            Show all jobs
          </button>
        </p>
      </Empty>
    );
  return (
    <Empty title="No jobs yet">
      <p>Start with a job that is ready to train:</p>
      <pre>
        {"weft init my-first-job\nweft train my-first-job --follow"}
      </pre>
      <p>
        or <Link to="/submit">write one here</Link>.
      </p>
    </Empty>
  );
}
