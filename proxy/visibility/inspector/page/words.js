// How figures and names are written. Everything that came from outside passes through `visible` on its way to the page.

// What a browser would obey rather than show: control characters, and marks that turn or hide text.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const count = new Intl.NumberFormat("en");
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function visible(text) {
  return String(text).replace(UNSEEN, (mark) => "\\u" + mark.codePointAt(0).toString(16).padStart(4, "0"));
}

export function number(value) {
  return value === null || value === undefined ? "–" : count.format(value);
}

export function bytes(value) {
  if (value < 1000) return `${value}\u00a0B`;
  if (value < 1e6) return `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)}\u00a0kB`;
  return `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)}\u00a0MB`;
}

export function large(value) {
  if (value < 10000) return count.format(value);
  if (value < 1e6) return `${(value / 1000).toFixed(value < 1e5 ? 1 : 0)}\u00a0k`;
  return `${(value / 1e6).toFixed(2)}\u00a0M`;
}

export function change(before, after) {
  if (!before) return "0\u00a0%";
  const share = (100 * (after - before)) / before;
  const digits = Math.abs(share) < 10 ? 1 : 0;
  const text = Math.abs(share).toFixed(digits);
  return Number(text) === 0 ? "0\u00a0%" : `${share < 0 ? "−" : "+"}${text}\u00a0%`;
}

export function price(value) {
  if (value !== 0 && Math.abs(value) < 0.01) return small.format(value);
  return value.toFixed(Math.abs(value) < 1 ? 4 : 2);
}

export function range(one, other) {
  const [least, most] = [Math.min(one, other), Math.max(one, other)].map(price);
  return least === most ? least : `${least} to ${most}`;
}

// A count of which a part is an estimate says so.
export function about(estimated, value) {
  return `${estimated ? "≈\u00a0" : ""}${large(value)}`;
}

export function ms(value) {
  return value < 10 ? `${value.toFixed(1)}\u00a0ms` : value < 10000 ? `${Math.round(value)}\u00a0ms` : `${(value / 1000).toFixed(1)}\u00a0s`;
}

export function time(at) {
  return clock.format(new Date(at));
}

export function moment(at) {
  return full.format(new Date(at));
}

export function many(n, one, more = `${one}s`) {
  return `${number(n)} ${n === 1 ? one : more}`;
}
