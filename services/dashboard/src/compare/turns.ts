// Charts that wait to be drawn, one in a frame: a row of them in one frame would be seen as a jerk.

const turns = new Set<() => void>();
let isRequested = false;

/** Calls in a frame in which no other chart is drawn. Returns a function that gives the turn up. */
export function inTurn(draw: () => void): () => void {
  turns.add(draw);
  request();
  return () => turns.delete(draw);
}

/** One frame is requested at a time, also if all turns were given up before it comes. */
function request(): void {
  if (isRequested || turns.size === 0) return;
  isRequested = true;
  requestAnimationFrame(() => {
    isRequested = false;
    const [draw] = turns;
    if (!draw) return;
    turns.delete(draw);
    request();
    draw();
  });
}
