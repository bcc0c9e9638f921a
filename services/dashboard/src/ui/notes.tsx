// What a screen says in place of content: nothing there yet, an error, or waiting.
import type { ReactNode } from "react";
import { messageOf } from "../api/problem.ts";

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div className="note bad" role="alert">
      <span>{messageOf(error)}</span>
      {retry ? (
        <button type="button" className="quiet" onClick={retry}>
          Try again
        </button>
      ) : null}
    </div>
  );
}

/** Shown after a moment only, so that quick answers do not flicker. */
export function Loading({ what }: { what: string }) {
  return (
    <p className="loading" role="status">
      Loading {what} …
    </p>
  );
}
