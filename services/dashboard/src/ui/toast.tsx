// Short messages on what was just done. They go by themselves; errors stay until closed.
import { useEffect } from "react";
import { Store, useStore } from "../store.ts";
import { messageOf } from "../api/problem.ts";
import { Symbol } from "./icons.tsx";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  action?: { label: string; run: () => void };
}

const toasts = new Store<Toast[]>([]);
const SHOWN_MS = 7000;
let last = 0;

export function say(text: string, action?: Toast["action"]): void {
  toasts.set([...toasts.get().slice(-3), { id: ++last, text, bad: false, ...(action ? { action } : {}) }]);
}

export function sayError(what: string, error: unknown): void {
  toasts.set([...toasts.get().slice(-3), { id: ++last, text: `${what}: ${messageOf(error)}`, bad: true }]);
}

const close = (id: number): void => toasts.set(toasts.get().filter((toast) => toast.id !== id));

export function Toasts() {
  const shown = useStore(toasts);
  return (
    <div className="toasts" aria-live="polite" role="status">
      {shown.map((toast) => (
        <ToastBox key={toast.id} toast={toast} />
      ))}
    </div>
  );
}

function ToastBox({ toast }: { toast: Toast }) {
  useEffect(() => {
    if (toast.bad) return undefined;
    const timer = setTimeout(() => close(toast.id), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [toast]);
  return (
    <div className={toast.bad ? "toast bad" : "toast"}>
      <span>{toast.text}</span>
      {toast.action ? (
        <button
          type="button"
          className="quiet"
          onClick={() => {
            close(toast.id);
            toast.action?.run();
          }}
        >
          {toast.action.label}
        </button>
      ) : null}
      <button type="button" className="quiet icon-only" aria-label="Close message" onClick={() => close(toast.id)}>
        <Symbol name="close" size={11} />
      </button>
    </div>
  );
}
