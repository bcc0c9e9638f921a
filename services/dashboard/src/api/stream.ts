// Follows the page's live stream (/v1/stream) over fetch, for as long as a component wants it.
//
// A stream never ends by itself. One that was cut is opened again, from the id of its last event. The server sends
// something every 15 s; a connection that is silent for longer than SILENT_MS is taken for dead.
import { ROOT } from "./client.ts";
import { type ApiError, errorOf, parsed } from "./problem.ts";
import { sessionLost } from "./session.ts";
import { FrameParser, type Frame } from "./sse.ts";
import { streams } from "./stream_health.ts";

const SILENT_MS = 40_000;
const FIRST_BACKOFF_MS = 400;
const LAST_BACKOFF_MS = 8_000;

export interface Following {
  path: string;
  signal: AbortSignal;
  onFrames: (frames: Frame[]) => void;
  /** It cannot continue, e.g. the job does not exist. */
  onError?: (error: ApiError) => void;
}

/** Returns when `signal` ends the stream, or it cannot continue. */
export async function follow(following: Following): Promise<void> {
  const health = streams.add();
  let lastId: string | null = null;
  let backoff = FIRST_BACKOFF_MS;
  try {
    while (!following.signal.aborted) {
      const onId = (id: string): void => {
        lastId = id;
      };
      const error = await once(following, lastId, onId, () => {
        backoff = FIRST_BACKOFF_MS;
        health.set("live");
      });
      if (following.signal.aborted) return;
      if (error) {
        following.onError?.(error);
        return;
      }
      health.set("lost");
      await pause(backoff * (0.7 + Math.random() * 0.6), following.signal);
      backoff = Math.min(backoff * 2, LAST_BACKOFF_MS);
    }
  } finally {
    health.remove();
  }
}

/** One connection, until it is cut (null) or refused for good. */
async function once(
  following: Following,
  lastId: string | null,
  onId: (id: string) => void,
  onAlive: () => void,
): Promise<ApiError | null> {
  const attempt = new AbortController();
  const stop = (): void => attempt.abort();
  following.signal.addEventListener("abort", stop);
  let watchdog = setTimeout(stop, SILENT_MS);
  try {
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (lastId !== null) headers["Last-Event-ID"] = lastId;
    const response = await fetch(ROOT + following.path, { headers, signal: attempt.signal, credentials: "same-origin" });
    if (response.status === 401) sessionLost();
    if (!response.ok || !response.body) {
      const error = await errorOf(response);
      // A proxy that does not know the platform for a moment may answer 404; only the platform explains its answer.
      return response.status >= 500 || response.status === 429 || error.problem.status === undefined ? null : error;
    }
    onAlive();
    const parser = new FrameParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null;
      clearTimeout(watchdog);
      watchdog = setTimeout(stop, SILENT_MS);
      const frames = parser.push(value);
      if (frames.length === 0) continue;
      for (const frame of frames) if (frame.id !== null) onId(frame.id);
      following.onFrames(frames);
      const last = frames.at(-1);
      if (last?.event !== "error") continue;
      const problem = parsed(last.data);
      if (problem.status === 401) sessionLost();
      return null;
    }
  } catch (error) {
    if (!(error instanceof DOMException || error instanceof TypeError)) reportError(error); // not of the network
    return null;
  } finally {
    clearTimeout(watchdog);
    following.signal.removeEventListener("abort", stop);
    attempt.abort();
  }
}

/** Waits, but no longer than until the network is back or the page is looked at again. */
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      window.removeEventListener("online", done);
      document.removeEventListener("visibilitychange", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    window.addEventListener("online", done);
    document.addEventListener("visibilitychange", done);
    signal.addEventListener("abort", done);
  });
}
