// Light, dark, or as the system says. Kept in this browser.
import { Store } from "../store.ts";

export type Theme = "system" | "light" | "dark";
const KEY = "weft.theme";

const stored = (): Theme => {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
};

export const theme = new Store<Theme>(stored());
/** Rises whenever colours may have changed: canvases have to be drawn again. */
export const colours = new Store(0);

function apply(): void {
  const value = theme.get();
  if (value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = value;
  try {
    if (value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // a browser without storage: the choice lasts as long as the page
  }
  colours.set(colours.get() + 1);
}

export function startTheme(): void {
  apply();
  theme.subscribe(apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.set(colours.get() + 1));
}
