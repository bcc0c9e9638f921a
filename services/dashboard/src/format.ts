// Numbers, times and sizes as people read them. Nothing here reads the clock.

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

// Made once: toLocaleString() makes a new one for each text, which takes longer than all the rest of a row.
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const grouped = (value: number): string => WHOLE.format(value).replaceAll(",", " ");

/** Milliseconds since the epoch; NaN for null. */
export const msOf = (time: string | null | undefined): number => (time ? Date.parse(time) : Number.NaN);

/** "42 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"; "" if unknown. */
export function duration(ms: number): string {
  if (!Number.isFinite(ms)) return "";
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < MINUTE) return `${s} s`;
  if (s < HOUR) return `${Math.floor(s / MINUTE)} min ${pad(s % MINUTE)} s`;
  if (s < DAY) return `${Math.floor(s / HOUR)} h ${pad(Math.floor((s % HOUR) / MINUTE))} min`;
  return `${Math.floor(s / DAY)} d ${Math.floor((s % DAY) / HOUR)} h`;
}

/** "just now", "5 min ago", "3 h ago", "2 d ago", then the date. */
export function ago(time: string, nowMs: number): string {
  const s = Math.round((nowMs - msOf(time)) / 1000);
  if (!Number.isFinite(s)) return "";
  if (s < 10) return "just now";
  if (s < MINUTE) return `${s} s ago`;
  if (s < HOUR) return `${Math.floor(s / MINUTE)} min ago`;
  if (s < DAY) return `${Math.floor(s / HOUR)} h ago`;
  if (s < 14 * DAY) return `${Math.floor(s / DAY)} d ago`;
  return new Date(msOf(time)).toLocaleDateString();
}

/** The absolute time, in the reader's zone, to the second. */
export function absolute(time: string): string {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? "" : MOMENT.format(date);
}

/** "14:03:27.120" of the reader's zone. */
export function clock(time: string): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** Four significant digits; exponents where digits would be lost. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) && size < 1e6) return grouped(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** Hours with as many digits as tell small ones from nothing: "1 234", "12.3", "0.25", "0.0042". */
export const hours = (value: number): string => (value >= 1000 ? grouped(value) : value >= 10 ? value.toFixed(1) : number(value));

/** Seconds with a tenth; longer times as duration() writes them. */
export const tenths = (ms: number): string => (ms < 9950 ? `${(Math.max(0, ms) / 1000).toFixed(1)} s` : duration(ms));

export const count = (value: number): string => grouped(value);

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 999.5 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${unit === 0 || scaled >= 100 ? Math.round(scaled) : Number(scaled.toFixed(1))} ${units[unit]}`;
}

export const percent = (share: number): string => `${Math.floor(Math.min(1, Math.max(0, share)) * 100)} %`;

export const plural = (n: number, word: string): string => `${Number.isInteger(n) ? count(n) : number(n)} ${word}${n === 1 ? "" : "s"}`;

/** A value of a metric as the API writes it. */
export const valueOf = (value: number | string): number => (typeof value === "number" ? value : Number(value));

function pad(n: number): string {
  return String(n).padStart(2, "0");
}
