// A browser for tests: one command a line on standard input, one JSON answer a line on standard output.
//
// Debian's Chromium, driven by Playwright. Nothing but this machine is reached: every other address is refused, and
// counted, so that a test can tell that a page asked for none.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox", "--disable-gpu"] });
let page;
let seen;

async function open({ width, height, dark, still }) {
  await page?.context().close();
  // The page's own policy forbids what is not its own; axe is put in by the browser, beside it.
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    reducedMotion: still === false ? "no-preference" : "reduce",
    timezoneId: "UTC",
    locale: "en-GB",
  });
  seen = { errors: [], elsewhere: [], dialogs: 0 };
  await context.route("**/*", (route) => {
    const { hostname, protocol } = new URL(route.request().url());
    if (hostname === "127.0.0.1" || protocol === "data:") return route.continue();
    seen.elsewhere.push(route.request().url());
    return route.abort();
  });
  page = await context.newPage();
  page.on("pageerror", (fault) => seen.errors.push(String(fault)));
  page.on("console", (message) => message.type() === "error" && seen.errors.push(message.text()));
  page.on("dialog", (dialog) => {
    seen.dialogs += 1;
    return dialog.dismiss();
  });
}

async function check() {
  // As a user script of the browser it is subject to no policy of the page.
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const { executionContextId } = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
  const run = (expression) => session.send("Runtime.evaluate", { contextId: executionContextId, expression, awaitPromise: true, returnByValue: true });
  await run(axe);
  const { result } = await run(`axe.run(document, { resultTypes: ["violations"] }).then((found) =>
    found.violations.map(({ id, impact, nodes }) => ({ id, impact, where: nodes.map((node) => node.target.join(" ") + ": " + node.failureSummary) })))`);
  return result.value;
}

// The page's policy forbids what Playwright does to wait for a function inside of it, so it is asked again and again.
async function until({ script }) {
  for (const end = Date.now() + 60000; Date.now() < end; await new Promise((again) => setTimeout(again, 50))) {
    if (await page.evaluate(script)) return null;
  }
  throw new Error(`this did not become true: ${script}`);
}

const commands = {
  open,
  check,
  goto: ({ url }) => page.goto(url).then(() => null),
  wait: ({ selector, state }) => page.waitForSelector(selector, { state: state ?? "attached", timeout: 60000 }).then(() => null),
  until,
  evaluate: ({ script }) => page.evaluate(script),
  click: ({ selector }) => page.click(selector, { timeout: 30000 }).then(() => null),
  press: ({ key }) => page.keyboard.press(key).then(() => null),
  size: ({ width, height }) => page.setViewportSize({ width, height }).then(() => null),
  picture: ({ path, whole }) => page.screenshot({ path, fullPage: whole }).then(() => null),
  seen: () => seen,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { does, ...given } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ value: (await commands[does](given)) ?? null }));
  } catch (fault) {
    console.log(JSON.stringify({ fault: String(fault).slice(0, 2000) }));
  }
}
await browser.close();
