// Plays what a client does when things go wrong, and prints what became of each: a line of JSON.
//
//     node behaving.mjs BASE_URL
//
// The model's name says what the provider will do.

import OpenAI, { APIError } from "openai";

const messages = [{ role: "user", content: "hi" }];
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-test", maxRetries: 2 });

async function outcome(work) {
  try {
    return await work();
  } catch (error) {
    return [error.constructor.name, error instanceof APIError ? (error.status ?? null) : null];
  }
}

const text = async (model, options) =>
  (await client.chat.completions.create({ model, messages }, options)).choices[0].message.content;

async function stream(model, options, most) {
  let said = "";
  let count = 0;
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true }, options)) {
    said += chunk.choices[0]?.delta.content ?? "";
    if (++count === most) break; // which aborts the request
  }
  return said;
}

const told = {};
for (const model of ["fine", "busy twice", "broken twice", "wrong", "unknown", "always busy", "gone"]) {
  told[model] = await outcome(() => text(model));
}
told["silent"] = await outcome(() => text("silent", { timeout: 1000 }));
const controller = new AbortController();
setTimeout(() => controller.abort(), 1000);
told["silent inside"] = await outcome(() => stream("silent inside", { signal: controller.signal }));
told["streamed"] = await outcome(() => stream("streamed"));
told["an error inside"] = await outcome(() => stream("an error inside"));
told["broken off"] = await outcome(() => stream("broken off"));
told["left"] = await outcome(() => stream("left", undefined, 2));
console.log(JSON.stringify(told));
process.exit(0);
