// Whether what is on the screen is live. The worst stream of the page decides.
import { Store } from "../store.ts";

export type Health = "idle" | "connecting" | "live" | "lost";

class Streams {
  readonly health = new Store<Health>("idle");
  private readonly states = new Map<number, Health>();
  private last = 0;

  add(): { set: (state: Health) => void; remove: () => void } {
    const key = ++this.last;
    const set = (state: Health): void => {
      this.states.set(key, state);
      this.settle();
    };
    set("connecting");
    return {
      set,
      remove: () => {
        this.states.delete(key);
        this.settle();
      },
    };
  }

  private settle(): void {
    const states = new Set(this.states.values());
    this.health.set(
      states.has("lost") ? "lost" : states.has("connecting") ? "connecting" : states.has("live") ? "live" : "idle",
    );
  }
}

export const streams = new Streams();
