// Server-sent events: the frames of a stream, from pieces of text of any size.

export interface Frame {
  event: string;
  data: string;
  id: string | null;
}

/** Collects pieces of a stream; gives the frames that are complete. Comments are left out. Each piece is read once. */
export class FrameParser {
  /** Of the line that is not complete. */
  private pieces: string[] = [];
  /** Complete lines of the frame that is not complete. */
  private lines: string[] = [];

  push(text: string): Frame[] {
    const frames: Frame[] = [];
    const parts = text.split("\n");
    for (const part of parts.slice(0, -1)) {
      const line = [...this.pieces, part].join("");
      this.pieces = [];
      if (line !== "" && line !== "\r") {
        this.lines.push(line.endsWith("\r") ? line.slice(0, -1) : line);
        continue;
      }
      const frame = frameOf(this.lines);
      if (frame) frames.push(frame);
      this.lines = [];
    }
    this.pieces.push(parts.at(-1) ?? "");
    return frames;
  }
}

function frameOf(lines: readonly string[]): Frame | null {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of lines) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    const name = line.slice(0, colon);
    if (name === "event") event = value;
    else if (name === "id") id = value;
    else if (name === "data") data.push(value);
  }
  return data.length > 0 ? { event, id, data: data.join("\n") } : null;
}
