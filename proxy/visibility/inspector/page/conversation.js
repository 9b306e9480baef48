// A conversation: how it grew, why no record fits where none does, and what its questions rest on.

import { chart } from "/inspector/page/chart.js";
import { el } from "/inspector/page/dom.js";
import { back, chips, declared, missing, outcome, size } from "/inspector/page/pieces.js";
import { ask } from "/inspector/page/server.js";
import { bytes, change, many, moment, time } from "/inspector/page/words.js";

export class Conversation {
  constructor(name, question) {
    this.name = name;
    this.question = question;
  }

  async show(main) {
    this.main = main;
    this.told = await ask(`conversations/${this.name}`);
    this.draw();
    if (this.question) {
      const card = document.getElementById(`question-${this.question}`);
      card?.scrollIntoView({ block: "center" });
      card?.classList.add("aimed");
    }
  }

  async heard(row) {
    if (row.conversation !== this.name || this.asking) return;
    this.asking = true;
    try {
      this.told = await ask(`conversations/${this.name}`);
      this.draw();
    } finally {
      this.asking = false;
    }
  }

  heardState() {}

  async refresh() {
    await this.heard({ conversation: this.name });
  }

  draw() {
    const { requests, questions, title } = this.told;
    const first = requests[0];
    const last = requests[requests.length - 1];
    const open = this.main.querySelector("details.figures")?.open ?? false;
    const wanted = el("div");
    this.main.replaceChildren(...[
      back(),
      el("div", null,
        el("h1", { tabindex: "-1" }, title ? title : `Conversation ${this.name}`),
        el("p", { class: "lede" }, `${many(requests.length, "request")} kept, from ${moment(first.at)} to ${time(last.at)}. `
          + `The last one: ${bytes(last.before)} came, ${bytes(last.after)} went (${change(last.before, last.after)}).`)),
      el("section", { class: "card", "aria-labelledby": "growth" },
        el("div", { class: "card-head" }, el("h2", { id: "growth" }, "Size of each request"),
          el("ul", { class: "legend" },
            el("li", null, el("span", { class: "swatch" }), "as it came"),
            el("li", null, el("span", { class: "swatch went" }), "as it went"),
            el("li", null, el("span", { class: "swatch capsule" }), "capsule's share"))),
        el("div", { class: "card-body" }, wanted, this.figures(requests, open))),
      this.differences(requests),
      el("section", { "aria-labelledby": "asked" },
        el("h2", { id: "asked" }, "Questions"),
        questions.length ? el("ul", { class: "questions", style: { "margin-top": "0.7rem" } }, questions.map((one) => this.card(one)))
          : missing("Nothing is known of its questions yet: none of them has evidence, or none has settled.")),
    ].filter(Boolean));
    wanted.replaceWith(chart(requests, this.main.clientWidth - 40));
  }

  figures(requests, open) {
    return el("details", { class: "figures", open },
      el("summary", null, "Each request in figures"),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Requests of this conversation" },
        el("table", null,
          el("thead", null, el("tr", null, ["Request", "Question", "Outcome", "Came", "Went", "Capsule"].map((name, at) =>
            el("th", { scope: "col", class: at > 2 ? "num" : null }, name)))),
          el("tbody", null, requests.map((row, at) => el("tr", null,
            el("td", null, el("a", { href: `#/r/${row.serial}` }, `${at + 1}, ${time(row.at)}`)),
            el("td", null, row.question ?? "–"),
            el("td", null, outcome(row)),
            el("td", { class: "num" }, bytes(row.before)),
            el("td", { class: "num" }, bytes(row.after)),
            el("td", { class: "num" }, bytes(row.capsule_bytes))))))));
  }

  differences(requests) {
    const told = requests.map((row, at) => [row, at]).filter(([row]) => row.reason === "no-record");
    if (!told.length) return null;
    return el("section", { class: "notice", "aria-labelledby": "differs" },
      el("h2", { id: "differs" }, "Why no record fits"),
      el("ul", null, told.slice(-8).map(([row, at]) => el("li", null,
        el("a", { href: `#/r/${row.serial}` }, `Request ${at + 1}`), ": ", difference(row.difference)))));
  }

  card(one) {
    const rows = this.told.requests.filter((row) => row.question === one.question);
    const kept = one.evidence.length ? `${many(one.evidence.length, "result")} with evidence. ` : "No evidence of its own. ";
    return el("li", { class: "question-card", id: `question-${one.question}` },
      el("h3", null, `Question ${one.question}`, declared(one)),
      one.cited.length ? chips(one.cited) : null,
      one.violation ? el("p", null, el("span", { class: "badge", "data-tone": "bad" }, "violation"), ` ${one.violation}`) : null,
      one.asked ? el("p", null, "It was asked once what grounds its answer.") : null,
      el("p", null, kept, rows.length ? ["Requests: ", rows.map((row, at) => [at ? ", " : "",
        el("a", { href: `#/r/${row.serial}` }, String(this.told.requests.indexOf(row) + 1))])] : null));
  }
}

const KINDS = { user: "a user message", call: "a tool call", return: "a tool's result" };

function difference(found) {
  if (!found) return "nothing of this conversation went by here before, so its answers were never recorded.";
  if (found.what === "nothing") {
    return "it continues the request before it, word for word. Its records were never written, are lost, or belong to another credential.";
  }
  const kind = KINDS[found.kind] ?? "something";
  if (found.what === "added") return `message ${found.now} is ${kind} that the request before it did not have at this place.`;
  if (found.what === "removed") return `${kind} that stood in message ${found.before} of the request before it is gone.`;
  return `message ${found.now} is ${kind} that says something else than message ${found.before} of the request before it.`;
}

export { size };
