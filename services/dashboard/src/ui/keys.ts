// Keyboard shortcuts. None of them acts while someone types in a field, or in an open dialog or menu.
// A focused link or button keeps Enter and space.
import { useEffect, useLayoutEffect, useRef } from "react";

export type Shortcuts = Record<string, (event: KeyboardEvent) => void>;

const CONTROLS = "a,button,summary,[role=button],[role=tab]";

export function useShortcuts(shortcuts: Shortcuts): void {
  const latest = useRef(shortcuts);
  // Before the browser draws: a key may be pressed as soon as the rows are seen.
  useLayoutEffect(() => {
    latest.current = shortcuts;
  });
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || busy(event.target)) return;
      if ((event.key === "Enter" || event.key === " ") && onControl(event.target)) return;
      const action = latest.current[event.key];
      if (!action) return;
      event.preventDefault();
      action(event);
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}

function busy(target: EventTarget | null): boolean {
  if (document.querySelector("[role=dialog],[role=alertdialog],[role=menu]")) return true;
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

const onControl = (target: EventTarget | null): boolean => target instanceof Element && target.closest(CONTROLS) !== null;
