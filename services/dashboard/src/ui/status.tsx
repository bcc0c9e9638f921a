// The status of a job: a word, a colour and a shape, so that no one of them is needed.
import { type IconName, Symbol } from "./icons.tsx";

const LOOKS: Record<string, { icon: IconName; tone: string }> = {
  QUEUED: { icon: "wait", tone: "wait" },
  PENDING: { icon: "wait", tone: "start" },
  DOWNLOADING: { icon: "move", tone: "start" },
  PROCESSING: { icon: "run", tone: "run" },
  STORING: { icon: "move", tone: "run" },
  HALTING: { icon: "halted", tone: "halt" },
  HALTED: { icon: "halted", tone: "halt" },
  RESUMED: { icon: "run", tone: "wait" },
  COMPLETED: { icon: "done", tone: "good" },
  FAILED: { icon: "failed", tone: "bad" },
  KILLED: { icon: "killed", tone: "dead" },
};

export const STATUSES = ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "HALTING", "HALTED", "COMPLETED", "FAILED", "KILLED"];

export const toneOf = (status: string): string => LOOKS[status]?.tone ?? "wait";

export function StatusBadge({ status, large = false }: { status: string; large?: boolean }) {
  const look = LOOKS[status] ?? { icon: "wait", tone: "wait" };
  return (
    <span className={`status tone-${look.tone}${large ? " large" : ""}`}>
      <Symbol name={look.icon} size={large ? 15 : 12} />
      {status.toLowerCase()}
    </span>
  );
}
