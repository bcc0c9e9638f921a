// Small drawings in the colour of the text. They say nothing to screen readers: the words beside them do.
import type { ReactNode } from "react";

function Icon({ children, size = 14 }: { children: ReactNode; size?: number }) {
  return (
    <svg viewBox="0 0 16 16" width={size} height={size} aria-hidden="true" className="icon">
      {children}
    </svg>
  );
}

const line = { fill: "none", stroke: "currentColor", strokeWidth: 1.7, strokeLinecap: "round", strokeLinejoin: "round" } as const;

const SHAPES: Record<string, ReactNode> = {
  wait: <path {...line} d="M8 4.5V8l2.2 1.6M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0Z" />,
  run: <path fill="currentColor" d="M4.5 2.9v10.2a.6.6 0 0 0 .9.5l8.2-5.1a.6.6 0 0 0 0-1L5.4 2.4a.6.6 0 0 0-.9.5Z" />,
  done: <path {...line} d="m3 8.5 3.3 3.3L13 4.7" />,
  failed: <path {...line} d="m4 4 8 8m0-8-8 8" />,
  halted: <path {...line} strokeWidth={2.4} d="M5.5 3.5v9m5-9v9" />,
  killed: <rect fill="currentColor" x="3.5" y="3.5" width="9" height="9" rx="1.5" />,
  move: <path {...line} d="M8 3v9m0 0 3.5-3.5M8 12 4.5 8.5" />,
  search: <path {...line} d="m10.7 10.7 3 3M12 7A5 5 0 1 1 2 7a5 5 0 0 1 10 0Z" />,
  plus: <path {...line} d="M8 3v10M3 8h10" />,
  more: <path fill="currentColor" d="M3.2 9.3a1.3 1.3 0 1 0 0-2.6 1.3 1.3 0 0 0 0 2.6Zm4.8 0a1.3 1.3 0 1 0 0-2.6 1.3 1.3 0 0 0 0 2.6Zm4.8 0a1.3 1.3 0 1 0 0-2.6 1.3 1.3 0 0 0 0 2.6Z" />,
  close: <path {...line} d="m4 4 8 8m0-8-8 8" />,
  sun: <path {...line} d="M8 1.5v1.3m0 10.4v1.3M1.5 8h1.3m10.4 0h1.3M3.4 3.4l.9.9m7.4 7.4.9.9m0-9.2-.9.9m-7.4 7.4-.9.9M10.6 8a2.6 2.6 0 1 1-5.2 0 2.6 2.6 0 0 1 5.2 0Z" />,
  moon: <path {...line} d="M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z" />,
  system: <path {...line} d="M2 3h12v8H2zM6 14h4" />,
  copy: <path {...line} d="M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3" />,
  down: <path {...line} d="m4 6 4 4 4-4" />,
  up: <path {...line} d="m4 10 4-4 4 4" />,
  user: <path {...line} d="M8 8a2.8 2.8 0 1 0 0-5.6A2.8 2.8 0 0 0 8 8ZM2.8 14c.5-2.5 2.6-3.7 5.2-3.7s4.7 1.2 5.2 3.7" />,
  key: <path {...line} d="M7.2 8.8a3 3 0 1 1-2.1-2.1 3 3 0 0 1 2.1 2.1ZM7 9.5h7v3m-3-3v2" />,
  download: <path {...line} d="M8 2v8m0 0 3-3m-3 3L5 7M3 13.5h10" />,
};

export type IconName = "wait" | "run" | "done" | "failed" | "halted" | "killed" | "move" | "search" | "plus" | "more" | "close" | "sun" | "moon" | "system" | "copy" | "down" | "up" | "user" | "key" | "download";

export function Symbol({ name, size }: { name: IconName; size?: number }) {
  return <Icon {...(size ? { size } : {})}>{SHAPES[name]}</Icon>;
}
