// Where in a YAML text a wrong field is: from the JSON pointer of an error to a line. Pure.
import { isMap, isPair, isScalar, isSeq, LineCounter, parseDocument } from "yaml";

export interface Mark {
  /** From 1; 0 if the text has no place for it. */
  line: number;
  message: string;
}

interface FieldError {
  pointer: string;
  message: string;
  hint?: string;
}

/** Errors of the text itself: what is no YAML. */
export function syntaxMarks(text: string): Mark[] {
  const counter = new LineCounter();
  const document = parseDocument(text, { lineCounter: counter, prettyErrors: false });
  return document.errors.map((error) => ({ line: counter.linePos(error.pos[0]).line, message: error.message }));
}

export function marksOf(text: string, errors: readonly FieldError[]): Mark[] {
  return errors.map((error) => ({
    line: lineOf(text, error.pointer),
    message: error.hint ? `${error.message}; ${error.hint}` : error.message,
  }));
}

/** The line of the field, or of the nearest field around it that the text has. */
export function lineOf(text: string, pointer: string): number {
  const counter = new LineCounter();
  const document = parseDocument(text, { lineCounter: counter, prettyErrors: false });
  let node: unknown = document.contents;
  let offset: number | undefined;
  for (const raw of pointer.split("/").slice(1)) {
    const name = raw.replaceAll("~1", "/").replaceAll("~0", "~");
    if (isMap(node)) {
      const pair = node.items.find((item) => isPair(item) && String(isScalar(item.key) ? item.key.value : item.key) === name);
      if (!pair) break;
      offset = startOf(pair.key) ?? offset;
      node = pair.value;
    } else if (isSeq(node)) {
      const item = node.items[Number(name)];
      if (item === undefined) break;
      offset = startOf(item) ?? offset;
      node = item;
    } else break;
  }
  return offset === undefined ? 0 : counter.linePos(offset).line;
}

function startOf(node: unknown): number | undefined {
  return typeof node === "object" && node !== null && "range" in node && Array.isArray(node.range) ? node.range[0] : undefined;
}
