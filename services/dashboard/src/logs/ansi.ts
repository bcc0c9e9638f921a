// Colours of terminals (SGR sequences) as spans with classes; all other control sequences are dropped. Pure.
//
// A job chooses its lines. The browser draws a hundred of them at once, so each gets a bounded number of elements and
// characters.

/** Characters of a line that are drawn. */
export const MOST_CHARACTERS = 2000;
/** Changes of the colour in a line that are drawn. */
export const MOST_SPANS = 100;

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

export interface Drawn {
  spans: Span[];
  /** Characters at the end of the line that are not drawn. */
  hidden: number;
}

export function drawn(line: string): Drawn {
  const spans: Span[] = [];
  let room = MOST_CHARACTERS;
  let style = PLAIN;
  let at = 0;
  /** Draws the text before `end`, as far as there is room. */
  const draw = (end: number): boolean => {
    const text = line.slice(at, Math.min(end, at + room));
    const className = classes(style);
    const last = spans.at(-1);
    if (text && last?.className === className) last.text += text;
    else if (text && spans.length === MOST_SPANS) return false;
    else if (text) spans.push({ text, className });
    room -= text.length;
    at += text.length;
    return at === end;
  };
  for (const match of line.matchAll(SEQUENCE)) {
    if (!draw(match.index)) return { spans, hidden: line.length - at };
    at = match.index + match[0].length;
    if (match[1] !== undefined) style = styled(style, match[1]);
  }
  draw(line.length);
  return { spans, hidden: line.length - at };
}

/** The whole line without control sequences. */
export const withoutControls = (line: string): string => line.replaceAll(SEQUENCE, "");

/** The line without control sequences, as far as it is drawn. */
export function plain(line: string): string {
  const { spans, hidden } = drawn(line);
  return spans.map((span) => span.text).join("") + (hidden > 0 ? " …" : "");
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
