// A request: as it came and as it went, side by side, with the reason of each fate.

import { el, picture, text } from "/inspector/page/dom.js";
import { back, chips, missing, outcome, tokens, usage } from "/inspector/page/pieces.js";
import { ask } from "/inspector/page/server.js";
import { bytes, change, many, moment, ms, number } from "/inspector/page/words.js";

const AT_ONCE = 400000;
const FATES = {
  receipt: ["receipt", "went"],
  carrier: ["holds the capsule", "went"],
  kept: ["stays", "care"],
  cut: ["pictures taken out", "went"],
  removed: ["taken out", "went"],
  added: ["put in", "went"],
  current: ["current question", "now"],
  same: ["as it came", null],
};

export class Request {
  constructor(serial) {
    this.serial = serial;
  }

  async show(main) {
    this.main = main;
    this.told = await ask(`requests/${this.serial}`);
    this.offers = [];
    this.draw();
  }

  heard(row) {
    if (row.serial !== this.told?.row.serial) return;
    this.told.row = row;
    this.facts?.replaceWith((this.facts = this.drawFacts()));
  }

  heardState() {}
  async refresh() {}

  draw() {
    const { row, messages, because } = this.told;
    const would = row.outcome === "observed";
    const heading = row.outcome === "compacted" || would
      ? `${bytes(row.before)} came, ${bytes(row.after)} ${would ? "would have gone" : "went"} (${change(row.before, row.after)})`
      : `${bytes(row.before)}, untouched${this.told.beside ? " but for what was added beside its messages" : ""}`;
    this.facts = this.drawFacts();
    this.main.replaceChildren(
      row.conversation ? back(`#/c/${row.conversation}`, `Conversation ${row.title ?? row.conversation}`) : back(),
      el("div", null, el("h1", { tabindex: "-1" }, heading), el("p", { class: "lede" }, this.told.header ?? null, because ? `: ${because}.` : null)),
      this.facts,
      messages ? this.sides(messages, would)
        : missing(row.left_out
          ? "Its messages were not looked at: too many requests came at once."
          : row.conversation
          ? "Its messages are no longer kept: the inspector forgets the oldest, and does not keep very large ones."
          : "Its messages were not read: it goes up as it came."));
  }

  drawFacts() {
    const { row } = this.told;
    const fact = (name, ...value) => el("div", null, el("dt", null, name), el("dd", null, ...value));
    return el("section", { class: "card card-body", "aria-label": "Figures" }, el("dl", { class: "facts" },
      fact("Outcome", outcome(row)),
      fact("Question", row.question ?? "–"),
      fact("Model", row.model || "–"),
      fact("Time", moment(row.at)),
      fact("Answered", row.status ? `status ${row.status}` : "nothing", row.end === "complete" ? "" : `, ${row.end}`),
      fact("Added by the proxy", ms(row.added)),
      fact("All in all", ms(row.took)),
      fact("Tokens in messages", tokens(row.tokens)),
      fact("Provider's usage", usage(row.usage)),
      row.figures ? fact("Capsule", `${many(row.figures.capsule, "chunk")}, ${bytes(row.capsule_bytes)}`) : null,
      row.figures ? fact("Receipts", `${number(row.figures.receipts)}${row.figures.kept ? `, ${row.figures.kept} stay` : ""}`) : null,
      fact("Request id", el("code", null, row.id))));
  }

  sides(messages, would) {
    const rows = [];
    let run = [];
    let question = null;
    const close = () => {
      if (run.length) rows.push(this.run(run));
      run = [];
    };
    messages.forEach((line, at) => {
      if (line.question !== question && line.role !== "system") {
        close();
        question = line.question;
        rows.push(this.turn(question));
      }
      const is = line.fate === "same" || line.fate === "current";
      if (is) run.push([line, at]);
      else {
        close();
        rows.push(this.pair(line, at));
      }
    });
    close();
    this.later();
    const beside = this.told.beside ? el("p", { class: "card-body soft" }, `${number(this.told.beside)} bytes were added beside the messages: the cite tool that managed citing offers.`) : null;
    return el("section", { class: "card", "aria-label": "Message by message" },
      el("div", { class: "side-heads" },
        el("p", null, "As it came", el("span", { class: "soft" }, bytes(this.told.row.before))),
        el("p", null, would ? "As it would have gone" : "As it went", el("span", { class: "soft" }, bytes(this.told.row.after)))),
      this.told.content || rows.length === 0 ? null
        : el("p", { class: "turn soft" }, "Content is hidden: sizes, ids and digests are shown. [inspector] content = true shows it."),
      el("div", { class: "sides" }, rows), beside);
  }

  turn(question) {
    const current = question === this.told.row.question;
    const of = this.told.row.conversation;
    return el("p", { class: "turn", "data-now": String(current) },
      el("a", { href: of ? `#/c/${of}/q${question}` : "#/" }, `Question ${question}`), current ? "the current one" : null);
  }

  // Messages that went as they came, folded: what they are is said, and what they hold is there on demand.
  run(lines) {
    const total = lines.reduce((sum, [line]) => sum + line.before, 0);
    const now = lines.some(([line]) => line.fate === "current");
    return el("details", { class: "run" },
      el("summary", null, `${many(lines.length, "message")} as ${lines.length === 1 ? "it" : "they"} came, ${bytes(total)}${now ? ", with evidence of the current question" : ""}`),
      el("div", { class: "inner" }, lines.map(([line, at]) => this.plain(line, at))));
  }

  plain(line, at) {
    const head = () => [el("span", { class: "role" }, `${line.index}, ${line.role}`), line.tool ? el("code", null, line.tool) : null,
      line.table ? el("span", { class: "badge", "data-tone": "now" }, line.table) : null,
      el("span", { class: "num" }, bytes(line.before))];
    const inside = [
      line.table ? el("p", { class: "why" }, ours(line)) : null,
      line.role === "tool" ? el("p", { class: "why" }, `${sentence(line.because)}.`) : null,
      line.shows.length ? chips(line.shows) : null,
      digest(line.digest_before)];
    const opened = el("div", { class: "part" }, inside);
    return el("details", { class: "plain", ontoggle: (event) => {
      if (event.target.open && this.told.content && !opened.dataset.loaded) {
        opened.dataset.loaded = "yes";
        this.load(opened, at, "came", line);
      }
    } }, el("summary", null, el("span", { class: "side-head", style: { display: "inline-flex", width: "calc(100% - 1.4rem)" } }, head())), opened);
  }

  pair(line, at) {
    const [words, tone] = FATES[line.fate] ?? [line.fate, null];
    const came = line.span
      ? el("div", { class: "side came" },
        el("div", { class: "side-head" }, el("strong", null, `${line.index}, ${line.role}`), line.tool ? el("code", null, line.tool) : null,
          line.table ? el("span", { class: "badge" }, line.table) : null, el("span", { class: "num" }, bytes(line.before))),
        line.table ? el("p", { class: "why" }, ours(line)) : null,
        line.shows.length ? chips(line.shows) : null,
        line.pictures ? el("p", { class: "why" }, many(line.pictures, "picture")) : null,
        digest(line.digest_before))
      : el("div", { class: "side none" }, el("p", { class: "why" }, "Nothing stood here."));
    const went = line.fate === "kept"
      ? el("div", { class: "side kept" }, this.fate(words, tone, line), el("p", { class: "why" }, `${sentence(line.because)}.`))
      : el("div", { class: line.fate === "removed" ? "side none" : "side went" },
        this.fate(words, tone, line),
        el("p", { class: "why" }, `${sentence(line.because)}.`),
        line.capsule.length ? this.groups(line.capsule) : null,
        digest(line.digest_after));
    if (this.told.content) {
      if (line.span) this.offer(came, at, "came", line);
      if (line.fate !== "removed" && line.fate !== "kept") this.offer(went, at, "went", line);
    }
    return el("div", { class: "pair", id: `message-${line.index}` }, came, went);
  }

  fate(words, tone, line) {
    return el("div", { class: "side-head" }, el("span", { class: "badge", "data-tone": tone }, words),
      el("span", { class: "num" }, line.fate === "removed" ? "0 B" : bytes(line.after)));
  }

  groups(groups) {
    const of = this.told.row.conversation;
    return el("ol", { class: "groups", "aria-label": "What the capsule holds" }, groups.map((group) => el("li", null,
      el("span", null, "Cited by ", el("a", { href: of ? `#/c/${of}/q${group.question}` : "#/" }, `question ${group.question}`)),
      el("ul", { class: "chips" }, group.chunks.flatMap((chunk) => chunk.ids.map((id) => el("li", { class: "chip",
        title: chunk.source ? `${id}, ${chunk.source}` : id }, id, ` ← message ${chunk.message}`)))))));
  }

  // What changed is shown at once, capsules first, as far as that is little; a long conversation is not loaded whole.
  offer(side, at, which, line) {
    const size = which === "came" ? line.before : line.after;
    const first = line.fate === "carrier" || line.fate === "added";
    this.offers.push({ side, at, which, line, size, first });
  }

  later() {
    let room = AT_ONCE;
    for (const one of this.offers.sort((a, b) => Number(b.first) - Number(a.first))) {
      room -= one.size + 2000;
      if (room > 0) this.load(one.side, one.at, one.which, one.line);
      else this.button(one.side, one.at, one.which, one.line);
    }
  }

  button(side, at, which, line) {
    const button = el("button", { class: "quiet", onclick: () => { button.remove(); this.load(side, at, which, line); } }, "Show what it holds");
    side.append(button);
  }

  async load(side, at, which, line) {
    try {
      const { parts } = await ask(`requests/${this.serial}/lines/${at}?side=${which}`);
      parts.forEach((part, number) => side.append(this.part(part, number, at, which, line)));
    } catch (fault) {
      side.append(el("p", { class: "why" }, fault.message));
    }
  }

  part(part, number, at, which, line) {
    if (part.kind === "picture") {
      const words = `Picture of message ${line.index}`;
      return el("figure", { class: "part" },
        part.url ? picture(part.url, words) : el("p", { class: "why" }, `A picture that is not drawn here: ${part.where}`),
        el("figcaption", { class: "part-label" }, `${part.where}, ${many(part.size, "character")}`));
    }
    const name = part.kind === "call" ? `Calls ${part.name} with` : part.kind === "other" ? "A part of another kind" : null;
    const shown = el("pre", { class: "text", tabindex: "0", dir: "auto", role: "region",
      "aria-label": `Message ${line.index}, ${which === "came" ? "as it came" : "as it went"}, part ${number + 1}` }, text(part.text));
    const box = el("div", { class: "part" }, name ? el("p", { class: "part-label" }, name) : null, shown);
    let end = part.from + part.text.length;
    if (end < part.length) {
      const rest = el("p", { class: "part-label" });
      const more = el("button", { class: "quiet", onclick: async () => {
        const next = await ask(`requests/${this.serial}/lines/${at}?side=${which}&part=${number}&from=${end}`);
        shown.append(text(next.parts[0].text));
        end += next.parts[0].text.length;
        told();
      } }, "Show more");
      const told = () => {
        if (end >= part.length) rest.remove();
        else rest.replaceChildren(document.createTextNode(`${number_(end)} of ${number_(part.length)} characters. `), more);
      };
      told();
      box.append(rest);
    }
    return box;
  }
}

const number_ = number;

function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

// Why a result is evidence at all.
function ours(line) {
  return line.table === "tagged" ? "Evidence: a tag that this proxy signed proves it." : `Evidence: the table ${line.table} names its tool.`;
}

function digest(value) {
  return value ? el("p", { class: "part-label" }, "digest ", el("code", null, value)) : null;
}
