// Which points of a job a page has: those of its answer, and those that streams have brought since then. Pure.

/** When a stream takes the place of another, both may bring the same points. A stream may also be ahead of an answer that is shown later. */
export class Received {
  /** The page has every point up to this one; undefined: the answer did not say which it has. */
  last: number | undefined;
  /** The last point that the stream has sent, or the one after which it begins. */
  private sent = 0;

  /** The answer that is shown now has every point up to `through`. */
  answered(through: number | undefined): void {
    this.last = through;
  }

  /** A stream begins after this point. */
  begun(seq: number): void {
    this.sent = seq;
  }

  /** Those of a stream's points that are new. None if the page lacks points before them: the stream that follows brings all of them. */
  fresh<Point extends { seq: number }>(points: readonly Point[]): Point[] {
    const last = this.last ?? this.sent;
    const complete = this.sent <= last;
    this.sent = points.at(-1)?.seq ?? this.sent;
    if (!complete) return [];
    this.last = Math.max(last, this.sent);
    return points.filter((point) => point.seq > last);
  }
}
