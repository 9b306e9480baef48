// The first view: totals, and the requests as they come.

import { el, say } from "/inspector/page/dom.js";
import { conversationLink, named, outcome, size, tokens, usage, weigh } from "/inspector/page/pieces.js";
import { ask } from "/inspector/page/server.js";
import { about, bytes, change as difference, large, many, ms, number, price, range, time } from "/inspector/page/words.js";

const MOST_ROWS = 300;
const AT_ONCE = 100;

export class List {
  constructor() {
    this.rows = new Map(); // by serial number
    this.state = null;
    this.waiting = [];
    this.outcome = "";
    this.search = "";
    this.top = 1;
    this.unsaid = 0;
  }

  async show(main) {
    this.main = main;
    this.tiles = el("dl", { class: "tiles", "aria-label": "Totals since the start" });
    this.body = el("tbody");
    this.held = el("button", { class: "fresh", hidden: true, onclick: () => this.release() });
    this.older = el("div", { class: "more", hidden: true }, el("button", { onclick: () => this.fetchOlder() }, "Show older requests"));
    this.none = el("p", { class: "empty" }, "No request has come yet. Point a client at the proxy, and its requests appear here.");
    this.table = el("table", { class: "cards" },
      el("caption", { class: "unseen" }, "Requests, newest first"),
      el("thead", null, el("tr", null,
        ...["Time", "Conversation", "Outcome"].map((name) => el("th", { scope: "col" }, name)),
        el("th", { scope: "col" }, "As it came and went"),
        el("th", { scope: "col", class: "wide" }, "Model"),
        el("th", { scope: "col", class: "num wide" }, "Tokens"),
        el("th", { scope: "col", class: "num wide" }, "Provider's usage"),
        el("th", { scope: "col", class: "num" }, "Added"))),
      this.body);
    main.replaceChildren(
      el("h1", { tabindex: "-1" }, "Requests"),
      this.tiles,
      el("section", { class: "card", "aria-label": "Requests" },
        el("div", { class: "card-head tools" },
          el("div", null, this.held),
          el("label", null, "Outcome ", this.choice()),
          el("label", null, "Find ", el("input", { type: "search", placeholder: "model or id", oninput: (event) => {
            this.search = event.target.value.trim().toLowerCase();
            this.draw();
          } }))),
        this.table, this.none, this.older));
    await this.refresh();
  }

  choice() {
    const names = ["", "compacted", "observed", "nothing-earlier", "no-evidence", "no-record", "no-citations",
      "missing-content", "store-slow", "store-error", "server-side-history", "background", "not-json", "off"];
    return el("select", { onchange: (event) => { this.outcome = event.target.value; this.draw(); } },
      names.map((name) => el("option", { value: name }, name || "all")));
  }

  async refresh() {
    const { requests, state } = await ask(`requests?most=${AT_ONCE}`);
    this.rows = new Map(requests.map((row) => [row.serial, row]));
    this.waiting = [];
    this.state = state;
    this.draw();
  }

  async fetchOlder() {
    const oldest = Math.min(...this.rows.keys());
    const { requests } = await ask(`requests?most=${AT_ONCE}&before=${oldest}`);
    for (const row of requests) this.rows.set(row.serial, row);
    this.draw();
    if (!requests.length) this.older.hidden = true;
  }

  // A row that is new, or one that is known better now.
  heard(row) {
    if (this.rows.has(row.serial)) {
      this.rows.set(row.serial, row);
      const shown = this.body.querySelector(`[data-serial="${Number(row.serial)}"]`);
      if (shown) shown.replaceWith(this.row(row));
      return;
    }
    const held = this.waiting.findIndex((known) => known.serial === row.serial);
    if (held >= 0) {
      this.waiting[held] = row;
      return;
    }
    if (window.scrollY > 240) {
      this.waiting.push(row);
      this.held.hidden = false;
      this.held.textContent = many(this.waiting.length, "new request");
      return;
    }
    this.add(row, true);
  }

  release() {
    for (const row of this.waiting) this.add(row, true);
    this.waiting = [];
    this.held.hidden = true;
    window.scrollTo({ top: 0 });
  }

  add(row, fresh) {
    this.rows.set(row.serial, row);
    while (this.rows.size > MOST_ROWS) {
      const oldest = Math.min(...this.rows.keys());
      this.rows.delete(oldest);
      this.body.querySelector(`[data-serial="${Number(oldest)}"]`)?.remove();
    }
    this.none.hidden = true;
    if (this.fits(row)) {
      const top = Math.max(this.top, row.before);
      const made = this.row(row);
      if (fresh) made.classList.add("new");
      const next = [...this.body.children].find((shown) => Number(shown.dataset.serial) < row.serial);
      this.body.insertBefore(made, next ?? null);
      if (top > this.top * 1.5) this.draw();
    }
    this.unsaid += 1;
    this.tell ??= setTimeout(() => {
      say(`${many(this.unsaid, "new request")}. The newest: ${named(row)}.`);
      this.unsaid = 0;
      this.tell = undefined;
    }, 4000);
  }

  heardState(state) {
    this.state = state;
    this.drawTiles();
  }

  fits(row) {
    if (this.outcome && this.outcome !== named(row)) return false;
    if (!this.search) return true;
    return [row.model, row.id, row.conversation, row.title].some((text) => text && text.toLowerCase().includes(this.search));
  }

  draw() {
    const shown = [...this.rows.values()].sort((a, b) => b.serial - a.serial).filter((row) => this.fits(row));
    this.top = Math.max(1, ...shown.map((row) => row.before));
    this.body.replaceChildren(...shown.map((row) => this.row(row)));
    this.table.hidden = shown.length === 0;
    this.none.hidden = shown.length > 0;
    if (this.rows.size) this.none.textContent = "No request fits this choice.";
    this.older.hidden = !this.rows.size || Math.min(...this.rows.keys()) <= 1;
    this.drawTiles();
  }

  drawTiles() {
    if (this.state) this.tiles.replaceChildren(...tiles(this.state));
  }

  row(row) {
    const go = (event) => {
      if (!event.target.closest("a, button") && !window.getSelection()?.toString()) location.hash = `#/r/${row.serial}`;
    };
    this.table.hidden = false;
    return el("tr", { class: "goes", "data-serial": row.serial, onclick: go },
      el("td", { class: "when" }, el("a", { href: `#/r/${row.serial}`, "aria-label": `Request ${row.serial}, ${time(row.at)}` }, time(row.at)),
        row.status && row.status >= 400 ? el("span", { class: "badge", "data-tone": "bad" }, `status ${row.status}`) : null,
        row.end !== "complete" ? el("span", { class: "second" }, row.end) : null),
      el("td", { class: "talk" }, conversationLink(row, row.title ?? row.conversation) ?? el("span", { class: "soft" }, "–"),
        row.question ? el("span", { class: "second" }, `question ${row.question}`) : null),
      el("td", null, outcome(row)),
      el("td", { class: "size" }, size(row), weigh(row.before, row.after, this.top)),
      el("td", { class: "wide" }, row.model || el("span", { class: "soft" }, "–")),
      el("td", { class: "num wide" }, tokens(row.tokens)),
      el("td", { class: "num wide" }, usage(row.usage)),
      el("td", { class: "num" }, ms(row.added)));
  }
}

function tile(name, figure, ...beside) {
  return el("div", { class: "card tile" }, el("dt", null, name), el("dd", { class: "figure" }, figure),
    beside.filter(Boolean).map((line) => (line instanceof Node ? el("dd", null, line) : el("dd", { class: "beside" }, line))));
}

function shrunk(name, change, write, ...beside) {
  return tile(name, difference(change.before, change.after), weigh(change.before, change.after, change.before),
    `${write(change.before)} came, ${write(change.after)} went`, ...beside);
}

function counted(told) {
  const of = `of ${many(told.counted, "request")}`;
  const how = told.guessed ? `${many(told.guessed, "request")} of unknown models, by a vocabulary near theirs` : "counted by their models' vocabularies";
  return [of, how, told.pictures.before ? `pictures estimated: ${large(told.pictures.before)} came, ${large(told.pictures.after)} went` : null];
}

function tiles(state) {
  const made = [
    tile("Requests", number(state.requests),
      `${number(state.compacted)} compacted, ${number(state.underway)} under way`,
      `${many(state.conversations, "conversation")} among the ${number(state.kept)} kept`,
      state.left_out ? `${number(state.left_out)} too many at once to be looked at` : null),
    shrunk("Request bytes", state.bytes, bytes),
  ];
  const told = state.tokens;
  if (told) made.push(shrunk("Tokens in messages", told, (value) => about(told.estimated, value), ...counted(told)));
  const seen = state.observed;
  if (seen) {
    const { tokens } = seen;
    made.push(tile("Would have been", difference(seen.bytes.before, seen.bytes.after),
      weigh(seen.bytes.before, seen.bytes.after, seen.bytes.before),
      `${bytes(seen.bytes.before)} went, ${bytes(seen.bytes.after)} with compaction on`,
      tokens.before ? `${about(tokens.estimated, tokens.before)} tokens went, ${about(tokens.estimated, tokens.after)} with it on` : null));
  }
  const used = state.usage;
  if (used) {
    const cached = used.input ? ` (${Math.round((100 * used.cached) / used.input)}\u00a0%)` : "";
    made.push(tile("Provider's own usage", `${large(used.input)} in`, `${large(used.cached)} of them from its cache${cached}`,
      `${large(used.output)} out, as ${many(used.requests, "reply", "replies")} said`));
  }
  if (state.money) made.push(paid(state.money));
  return made;
}

// Whether the provider's cache would have held what was not sent, nobody can know: so it is a range.
function paid(money) {
  return tile("Money, by the price table", [price(money.spent), el("span", { class: "unit" }, " spent")],
    `${range(...money.unchanged_with_cache)} uncompacted, by how much of that its cache had held`,
    `without any cache ${price(money.spent_without_cache)}, uncompacted ${price(money.unchanged_without_cache)}`,
    money.estimated ? `${many(money.estimated, "request")} without usage, by our own count` : null,
    money.unpriced ? `${many(money.unpriced, "request")} of models without a price` : null);
}
