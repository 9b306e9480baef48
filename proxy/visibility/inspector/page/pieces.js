// What several views show alike.

import { el } from "/inspector/page/dom.js";
import { bytes, change, large, many, number } from "/inspector/page/words.js";

const TONES = {
  compacted: "went",
  observed: "now",
  "nothing-earlier": null,
  "no-evidence": null,
  off: null,
  "no-record": "care",
  "no-citations": "care",
  "missing-content": "care",
  "store-slow": "bad",
  "store-error": "bad",
};

export function named(row) {
  if (row.outcome === "compacted") return "compacted";
  return row.outcome === "observed" ? "observed" : row.reason ?? "untouched";
}

export function outcome(row) {
  const name = named(row);
  const refused = row.outcome === "refused";
  return el("span", { class: "badge", "data-tone": refused ? "bad" : TONES[name] ?? null, title: row.because }, refused ? `refused: ${name}` : name);
}

export function weigh(before, after, top) {
  const width = (value) => ({ "--share": String(top ? (100 * value) / top : 0) });
  return el("span", { class: "weigh", "aria-hidden": "true" },
    el("span", { style: width(before) }), el("span", { style: width(after) }));
}

export function size(row) {
  if (row.before === row.after) return bytes(row.before);
  return [`${bytes(row.before)} → ${bytes(row.after)} `, el("span", { class: "soft" }, change(row.before, row.after))];
}

export function conversationLink(row, children) {
  return row.conversation ? el("a", { href: `#/c/${row.conversation}` }, children) : null;
}

export function usage(used) {
  if (!used) return "–";
  const cached = used.cached === null ? "" : `, ${large(used.cached)} cached`;
  return `${used.input === null ? "?" : large(used.input)} in${cached}, ${used.output === null ? "?" : large(used.output)} out`;
}

export function tokens(told) {
  if (!told) return "–";
  const mark = told.estimated ? "≈ " : "";
  return told.before === told.after ? mark + number(told.before) : `${mark}${number(told.before)} → ${number(told.after)}`;
}

const DECLARED = { grounded: ["grounded", "went"], ungrounded: ["nothing grounds it", null], missing: ["never declared", "care"] };

export function declared(question) {
  const [words, tone] = DECLARED[question.declaration] ?? ["not settled", "now"];
  return el("span", { class: "badge", "data-tone": tone }, words);
}

export function chips(ids) {
  return el("ul", { class: "chips" }, ids.map((id) => el("li", { class: "chip", title: id }, id)));
}

export function back(where = "#/", words = "All requests") {
  return el("p", { class: "back" }, el("a", { href: where }, `← ${words}`));
}

export function missing(sentence) {
  return el("p", { class: "card empty" }, sentence);
}

export { many };
