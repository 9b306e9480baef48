// Which view is shown: the address after # says it, so that every view can be linked, and the way back works.

import { Conversation } from "/inspector/page/conversation.js";
import { back, missing } from "/inspector/page/pieces.js";
import { List } from "/inspector/page/list.js";
import { Request } from "/inspector/page/request.js";
import { listen } from "/inspector/page/server.js";

const main = document.getElementById("main");
let view = null;

function chosen() {
  const [, kind, name, aim] = location.hash.split("/");
  if (kind === "c" && /^[0-9a-f]+$/.test(name ?? "")) return new Conversation(name, /^q\d+$/.test(aim ?? "") ? Number(aim.slice(1)) : null);
  if (kind === "r" && /^\d+$/.test(name ?? "")) return new Request(name);
  return new List();
}

async function go(moved) {
  if (location.hash === "#main") {
    main.focus();
    return;
  }
  const next = (view = chosen());
  try {
    await next.show(main);
  } catch (fault) {
    if (next !== view) return;
    main.replaceChildren(back(), missing(fault.message));
  }
  if (next !== view) return;
  const heading = main.querySelector("h1");
  document.title = `${heading?.textContent ?? "Inspector"} · Evidence Proxy`;
  if (moved) {
    heading?.focus({ preventScroll: true });
    if (!location.hash.includes("/q")) window.scrollTo({ top: 0 });
  }
}

function signal(state) {
  const shown = document.getElementById("signal");
  if (shown.dataset.state === "lost" && state === "live") view?.refresh?.();
  shown.dataset.state = state;
  document.getElementById("signal-text").textContent = { live: "Live", lost: "Lost; trying again" }[state];
}

function heard(name, data) {
  if (name === "request") view?.heard(data);
  else if (name === "anew") view?.refresh?.();
  else if (name === "state") {
    const shown = document.getElementById("content-state");
    shown.hidden = false;
    shown.textContent = data.content ? "content shown" : "content hidden";
    view?.heardState(data);
  }
}

window.addEventListener("hashchange", () => go(true));
window.addEventListener("resize", () => { if (view instanceof Conversation && view.told) view.draw(); });
go(false);
listen(heard, signal);
