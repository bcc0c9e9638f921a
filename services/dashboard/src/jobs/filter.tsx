// The filter: a line in the query language of `weft list -q`, ready-made filters, and views that this browser keeps.
import * as Menu from "@radix-ui/react-dropdown-menu";
import { type FormEvent, type RefObject, useEffect, useState } from "react";
import { ApiError } from "../api/problem.ts";
import { Symbol } from "../ui/icons.tsx";
import { MENUS } from "../ui/menus.ts";

export interface View {
  label: string;
  q: string;
}

const RUNNING = "status in (PENDING, DOWNLOADING, PROCESSING, STORING, HALTING)";
export const readyMade = (user: string): View[] => [
  { label: "All", q: "" },
  { label: "Running", q: RUNNING },
  { label: "Waiting", q: "status=QUEUED" },
  { label: "Failed", q: "status=FAILED" },
  { label: "Mine", q: `user=${quoted(user)}` },
];

const quoted = (word: string): string => (/^[\w.@-]+$/.test(word) ? word : `"${word.replaceAll(/["\\]/g, "\\$&")}"`);

const KEY = "weft.views";

function storedViews(): View[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(value)
      ? value.filter((view): view is View => typeof view?.label === "string" && typeof view?.q === "string")
      : [];
  } catch {
    return [];
  }
}

export function Filter({
  q,
  user,
  everyone,
  error,
  field,
  onChange,
  onEveryone,
}: {
  q: string;
  user: string;
  /** Whether the jobs of all tenants are shown; undefined: the user may see one only. */
  everyone: boolean | undefined;
  error: unknown;
  field: RefObject<HTMLInputElement | null>;
  onChange: (q: string) => void;
  onEveryone: (everyone: boolean) => void;
}) {
  const [text, setText] = useState(q);
  const [views, setViews] = useState(storedViews);
  useEffect(() => setText(q), [q]);

  const submit = (event: FormEvent): void => {
    event.preventDefault();
    onChange(text.trim());
  };
  const keep = (next: View[]): void => {
    setViews(next);
    try {
      localStorage.setItem(KEY, JSON.stringify(next));
    } catch {
      // a browser without storage
    }
  };
  const wrong = error instanceof ApiError && error.status === 400 ? error.problem.errors?.[0] : undefined;

  return (
    <search className="filter">
      <div className="segments" role="group" aria-label="Ready-made filters">
        {readyMade(user).map((view) => (
          <button key={view.label} type="button" aria-pressed={q === view.q} onClick={() => onChange(view.q)}>
            {view.label}
          </button>
        ))}
      </div>
      <form onSubmit={submit} className="filter-form">
        <Symbol name="search" />
        <input
          ref={field}
          aria-label="Filter jobs"
          aria-invalid={wrong !== undefined}
          aria-describedby={wrong ? "filter-error" : undefined}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
          placeholder="Filter, e.g. name~digits and metric.loss<0.3 and created<2d"
          spellCheck={false}
          autoComplete="off"
          enterKeyHint="search"
        />
        {text ? (
          <button type="button" className="quiet icon-only" aria-label="Clear the filter" onClick={() => onChange("")}>
            <Symbol name="close" size={11} />
          </button>
        ) : (
          <kbd aria-hidden="true">/</kbd>
        )}
      </form>
      {everyone === undefined ? null : (
        <label className="check-label">
          <input type="checkbox" checked={everyone} onChange={(event) => onEveryone(event.target.checked)} /> All tenants
        </label>
      )}
      <Menu.Root modal={false}>
        <Menu.Trigger className="button quiet compact" aria-label="Saved views">
          Views <Symbol name="down" size={11} />
        </Menu.Trigger>
        <Menu.Portal container={document.getElementById(MENUS)}>
          <Menu.Content className="menu" align="end" sideOffset={6} collisionPadding={8}>
            {views.length === 0 ? <Menu.Label className="menu-label">No saved views yet</Menu.Label> : null}
            {views.map((view) => (
              <Menu.Item key={view.label} className="menu-item" onSelect={() => onChange(view.q)}>
                {view.label}
              </Menu.Item>
            ))}
            <Menu.Separator className="menu-line" />
            <Menu.Item className="menu-item" disabled={!q || views.some((view) => view.q === q)} onSelect={() => keep([...views, { label: q, q }])}>
              Keep this filter
            </Menu.Item>
            <Menu.Item className="menu-item" disabled={!views.some((view) => view.q === q)} onSelect={() => keep(views.filter((view) => view.q !== q))}>
              Forget this filter
            </Menu.Item>
          </Menu.Content>
        </Menu.Portal>
      </Menu.Root>
      {wrong ? (
        <p id="filter-error" className="field-error" role="alert">
          {wrong.message}
          {wrong.hint ? ` – ${wrong.hint}` : ""}
        </p>
      ) : null}
    </search>
  );
}
