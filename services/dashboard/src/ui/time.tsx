// Times that grow older while they are looked at. The clock ticks once for all of them, and only on visible pages.
import { useSyncExternalStore } from "react";
import { absolute, ago, duration, msOf } from "../format.ts";

let now = Date.now();
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | null = null;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    if (document.hidden) return;
    now = Date.now();
    for (const notify of listeners) notify();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0 || timer === null) return;
    clearInterval(timer);
    timer = null;
  };
}

/** Milliseconds since the epoch, to the second. */
export const useNow = (): number => useSyncExternalStore(subscribe, () => now);

/** "5 min ago"; the absolute time on hover. */
export function Ago({ time }: { time: string | null | undefined }) {
  const text = useSyncExternalStore(subscribe, () => (time ? ago(time, now) : ""));
  return time ? (
    <time dateTime={time} title={absolute(time)}>
      {text}
    </time>
  ) : null;
}

/** The time from one moment to another, or until now. */
export function Elapsed({ from, to }: { from: string | null | undefined; to?: string | null | undefined }) {
  const text = useSyncExternalStore(subscribe, () => duration((to ? msOf(to) : Math.max(now, msOf(from))) - msOf(from)));
  return from ? <span title={`from ${absolute(from)}${to ? ` to ${absolute(to)}` : ""}`}>{text}</span> : null;
}
