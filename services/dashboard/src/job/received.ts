// Which points of a job a page has: its answer's, and those that streams bring since. Pure.

/** Streams overlap when one takes the place of another, and a stream may begin later than the page's answer ends. */
export class Received {
  /** Every point up to this one is here; undefined: the answer did not say. */
  last: number | undefined;
  /** The stream has sent every point up to this one, from its beginning on. */
  private sent = 0;

  /** The answer that is shown now has every point up to `through`. */
  answered(through: number | undefined): void {
    this.last = through;
  }

  /** A stream begins after this point. */
  begun(seq: number): void {
    this.sent = seq;
  }

  /** Those of a stream's points that are new. None if the page lacks points before them: another stream brings all. */
  fresh<Point extends { seq: number }>(points: readonly Point[]): Point[] {
    const last = this.last ?? this.sent;
    const complete = this.sent <= last;
    this.sent = points.at(-1)?.seq ?? this.sent;
    if (!complete) return [];
    this.last = Math.max(last, this.sent);
    return points.filter((point) => point.seq > last);
  }
}
