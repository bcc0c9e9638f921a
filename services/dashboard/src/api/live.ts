// The page's one live stream, as a hook. The parameters say what the page shows; a change of them opens a new stream.
import { useEffect, useRef } from "react";
import { follow } from "./stream.ts";
import type { Job, JobEvent, JobLine, JobPoint } from "./types.ts";

export interface Handlers {
  /** False: changes may have been missed, so everything is to be read again. */
  onReady?: (resumed: boolean) => void;
  onJob?: (job: Job) => void;
  onLeft?: (id: string) => void;
  onHistory?: (id: string, event: JobEvent) => void;
  onPoints?: (id: string, points: JobPoint[]) => void;
  onLines?: (id: string, lines: JobLine[]) => void;
  /** The stored data of a part of a job (job, points, lines) cannot be read. The server tries it again. */
  onDamaged?: (id: string, part: string, message: string) => void;
  /** Points or lines of a job begin after `seq`, or go on after damage. */
  onStart?: (id: string, part: string, seq: number) => void;
}

/** Follows `/v1/stream?parameters`; null: nothing (yet). */
export function useLive(parameters: string | null, handlers: Handlers): void {
  const latest = useRef(handlers);
  useEffect(() => {
    latest.current = handlers;
  });
  useEffect(() => {
    if (parameters === null) return undefined;
    const controller = new AbortController();
    void follow({
      path: `/v1/stream?${parameters}`,
      signal: controller.signal,
      onFrames: (frames) => {
        for (const frame of frames) dispatch(frame.event, frame.data, latest.current);
      },
    });
    return () => controller.abort();
  }, [parameters]);
}

function dispatch(event: string, text: string, handlers: Handlers): void {
  const data = JSON.parse(text);
  if (event === "ready") handlers.onReady?.(data.resumed);
  else if (event === "reset") handlers.onReady?.(false);
  else if (event === "job") handlers.onJob?.(data);
  else if (event === "left") handlers.onLeft?.(data.id);
  else if (event === "history") handlers.onHistory?.(data.id, data.event);
  else if (event === "points") handlers.onPoints?.(data.id, data.points);
  else if (event === "lines") handlers.onLines?.(data.id, data.lines);
  else if (event === "damaged") handlers.onDamaged?.(data.id, data.part, data.message);
  else if (event === "start") handlers.onStart?.(data.id, data.part, data.seq);
}
