// Colours of terminals (SGR sequences) as spans with classes; all other control sequences are dropped. Pure.

export interface Span {
  text: string;
  /** Names of classes; "" for plain text. */
  className: string;
}

// oxlint-disable-next-line no-control-regex
const SEQUENCE = /\u001B\[([0-9;:]*)m|\u001B\[[0-9;?]*[ -/]*[@-~]|\u001B\][^\u0007\u001B]*(?:\u0007|\u001B\\)|[\u0000-\u0008\u000B-\u001F\u007F]/g;

interface Style {
  bold: boolean;
  dim: boolean;
  underline: boolean;
  colour: number | null;
}

const PLAIN: Style = { bold: false, dim: false, underline: false, colour: null };

export function spans(line: string): Span[] {
  const parts: Span[] = [];
  let style = PLAIN;
  let at = 0;
  for (const match of line.matchAll(SEQUENCE)) {
    add(parts, line.slice(at, match.index), style);
    at = match.index + match[0].length;
    if (match[1] !== undefined) style = styled(style, match[1]);
  }
  add(parts, line.slice(at), style);
  return parts;
}

function add(parts: Span[], text: string, style: Style): void {
  if (text) parts.push({ text, className: classes(style) });
}

function classes(style: Style): string {
  return [
    style.bold ? "a-bold" : "",
    style.dim ? "a-dim" : "",
    style.underline ? "a-line" : "",
    style.colour === null ? "" : `a-${style.colour}`,
  ]
    .filter(Boolean)
    .join(" ");
}

function styled(style: Style, codes: string): Style {
  const numbers = codes.split(/[;:]/).map(Number);
  let next = { ...style };
  for (let index = 0; index < numbers.length; index += 1) {
    const code = numbers[index] ?? 0;
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 4) next.underline = true;
    else if (code === 22) next = { ...next, bold: false, dim: false };
    else if (code === 24) next.underline = false;
    else if (code >= 30 && code <= 37) next.colour = code - 30;
    else if (code >= 90 && code <= 97) next.colour = code - 90;
    else if (code === 39) next.colour = null;
    else if (code === 38 || code === 48) {
      const kind = numbers[index + 1];
      if (kind === 5 && code === 38) next.colour = basic(numbers[index + 2] ?? 7);
      index += kind === 5 ? 2 : kind === 2 ? 4 : 0;
    }
  }
  return next;
}

/** The nearest of the eight colours for one of the 256. */
function basic(colour: number): number | null {
  if (colour < 16) return colour % 8;
  if (colour >= 232) return null;
  const cube = colour - 16;
  return bright(Math.floor(cube / 36)) + 2 * bright(Math.floor(cube / 6) % 6) + 4 * bright(cube % 6);
}

const bright = (part: number): number => (part >= 3 ? 1 : 0);
