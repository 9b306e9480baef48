// How a conversation's requests grew: as they came, as they went, and how much of that is capsule.

import { svg } from "/inspector/page/dom.js";
import { bytes, many } from "/inspector/page/words.js";

const HEIGHT = 300;
const TOP = 26;
const BOTTOM = 30;
const LEFT = 62;
const RIGHT = 16;

function step(top) {
  const rough = top / 4;
  const base = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * base).find((n) => n >= rough);
}

export function chart(rows, width) {
  const wide = Math.max(280, width);
  const top = Math.max(1, ...rows.map((row) => Math.max(row.before, row.after)));
  const mark = step(top);
  const high = mark * Math.ceil(top / mark);
  const inner = wide - LEFT - RIGHT;
  const x = (at) => (rows.length === 1 ? LEFT + inner / 2 : LEFT + (inner * at) / (rows.length - 1));
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / high;
  const place = (value) => value.toFixed(1);
  const line = (of) => rows.map((row, at) => `${at ? "L" : "M"}${place(x(at))} ${place(y(of(row)))}`).join("");
  const area = (of) => `${line(of)}L${place(x(rows.length - 1))} ${place(y(0))}L${place(x(0))} ${place(y(0))}Z`;
  const first = rows[0];
  const last = rows[rows.length - 1];
  const drawn = [];
  for (let value = 0; value <= high + mark / 2; value += mark) {
    drawn.push(svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: place(y(value)), y2: place(y(value)) }),
      svg("text", { x: LEFT - 8, y: place(y(value) + 4), "text-anchor": "end" }, bytes(value)));
  }
  rows.forEach((row, at) => {
    if (!row.question || (at && rows[at - 1].question === row.question)) return;
    if (at) drawn.push(svg("line", { class: "question", x1: place(x(at)), x2: place(x(at)), y1: TOP - 6, y2: HEIGHT - BOTTOM }));
  });
  drawn.push(
    svg("path", { class: "came-area", d: area((row) => row.before) }),
    svg("path", { class: "went-area", d: area((row) => row.after) }),
    svg("path", { class: "capsule-area", d: area((row) => Math.min(row.capsule_bytes, row.after)) }),
    svg("path", { class: "came-line", d: line((row) => row.before) }),
    svg("path", { class: "went-line", d: line((row) => row.after) }));
  if (rows.length <= 40) {
    rows.forEach((row, at) => drawn.push(
      svg("circle", { class: "came-dot", cx: place(x(at)), cy: place(y(row.before)), r: 3 }),
      svg("circle", { class: "went-dot", cx: place(x(at)), cy: place(y(row.after)), r: 3 })));
  }
  let free = -Infinity;
  rows.forEach((row, at) => {
    if (!row.question || (at && rows[at - 1].question === row.question) || x(at) < free) return;
    drawn.push(svg("text", { x: place(x(at)), y: 14, "text-anchor": at ? "middle" : "start" }, `Q${row.question}`));
    free = x(at) + 34;
  });
  const every = Math.max(1, Math.ceil(rows.length / Math.max(2, Math.floor(inner / 60))));
  rows.forEach((row, at) => {
    if (at % every === 0) drawn.push(svg("text", { x: place(x(at)), y: HEIGHT - 10, "text-anchor": "middle" }, String(at + 1)));
  });
  const slot = inner / Math.max(1, rows.length - 1);
  rows.forEach((row, at) => drawn.push(
    svg("rect", { class: "slot", x: place(x(at) - slot / 2), y: TOP, width: place(slot), height: HEIGHT - TOP - BOTTOM,
      onclick: () => { location.hash = `#/r/${row.serial}`; } },
      svg("title", null, `Request ${at + 1}, question ${row.question ?? "?"}: ${bytes(row.before)} came, ${bytes(row.after)} went, `
        + `${bytes(row.capsule_bytes)} of it capsule`))));
  const words = `${many(rows.length, "request")}. As they came: from ${bytes(first.before)} to ${bytes(last.before)}. `
    + `As they went: from ${bytes(first.after)} to ${bytes(last.after)}, of which the capsule takes ${bytes(last.capsule_bytes)}.`;
  return svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${HEIGHT}`, role: "img", "aria-label": words }, ...drawn);
}
