// A YAML editor: a text field with numbered lines, marks at wrong ones, and completion of field names.
import { type KeyboardEvent, useId, useRef, useState } from "react";
import { completions, type Field } from "./completion.ts";
import type { Mark } from "./locate.ts";

const INDENT = "  ";

export function Editor({ text, marks, onText }: { text: string; marks: Mark[]; onText: (text: string) => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const [offer, setOffer] = useState<{ word: string; fields: Field[] }>({ word: "", fields: [] });
  const [chosen, setChosen] = useState(0);
  const listId = useId();
  const lines = text.split("\n");
  const byLine = new Map(marks.map((mark) => [mark.line, mark.message]));

  const suggest = (): void => {
    const field = area.current;
    if (!field || field.selectionStart !== field.selectionEnd) return;
    setOffer(completions(field.value, field.selectionStart));
    setChosen(0);
  };
  const insert = (value: string, back: number): void => {
    const field = area.current;
    if (!field) return;
    // Through the browser, so that its undo knows of it.
    field.focus();
    field.setSelectionRange(field.selectionStart - back, field.selectionEnd);
    if (!document.execCommand("insertText", false, value)) field.setRangeText(value, field.selectionStart, field.selectionEnd, "end");
    onText(field.value);
    setOffer({ word: "", fields: [] });
  };
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>): void => {
    const field = offer.fields[chosen];
    if (field && offer.word && (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey))) {
      event.preventDefault();
      insert(`${field.name}: `, offer.word.length);
    } else if (field && event.key === "Escape") setOffer({ word: "", fields: [] });
    else if (field && offer.word && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      setChosen((chosen + (event.key === "ArrowDown" ? 1 : offer.fields.length - 1)) % offer.fields.length);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      const before = event.currentTarget.value.slice(0, event.currentTarget.selectionStart).split("\n").at(-1) ?? "";
      const indent = /^\s*/.exec(before)?.[0] ?? "";
      if (!indent && !before.trimEnd().endsWith(":")) return;
      event.preventDefault();
      insert(`\n${indent}${before.trimEnd().endsWith(":") ? INDENT : ""}`, 0);
    }
  };
  return (
    <div className="editor">
      <div className="editor-box">
        <div className="gutter" ref={gutter} aria-hidden="true">
          {lines.map((_, index) => (
            // oxlint-disable-next-line react/no-array-index-key
            <span key={index} className={byLine.has(index + 1) ? "wrong" : ""} title={byLine.get(index + 1)}>
              {index + 1}
            </span>
          ))}
        </div>
        <textarea
          ref={area}
          value={text}
          aria-label="Spec of the job, YAML"
          aria-invalid={marks.length > 0}
          aria-controls={listId}
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          wrap="off"
          onChange={(event) => {
            onText(event.target.value);
            setTimeout(suggest);
          }}
          onKeyDown={onKeyDown}
          onBlur={() => setOffer({ word: "", fields: [] })}
          onScroll={(event) => {
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
        />
      </div>
      <ul className="offers" id={listId} aria-label="Fields that fit here">
        {offer.word
          ? offer.fields.map((field, index) => (
              <li key={field.name} className={index === chosen ? "chosen" : ""}>
                <button type="button" tabIndex={-1} onPointerDown={(event) => event.preventDefault()} onClick={() => insert(`${field.name}: `, offer.word.length)}>
                  <b>{field.name}</b> <span className="faint">{field.description}</span>
                </button>
              </li>
            ))
          : null}
      </ul>
    </div>
  );
}
