// Server-sent events: the frames of a stream, from pieces of text of any size.

export interface Frame {
  event: string;
  data: string;
  id: string | null;
}

/** Collects pieces of a stream; gives the frames that are complete. Comments are left out. */
export class FrameParser {
  private rest = "";

  push(text: string): Frame[] {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.map(frameOf).filter((frame) => frame !== null);
  }
}

function frameOf(block: string): Frame | null {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
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
