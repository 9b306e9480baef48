// The Vercel AI SDK without a cite tool, at its step limit: `node toolless.mjs CLIENT BASE_URL VARIANT...` (toolless.py).
import { generateText, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

const [, url, ...variants] = process.argv.slice(2);

const found = (query) =>
  JSON.stringify([1, 2].map((n) => ({ id: `${query}-${n}`, text: `Chunk ${n} of ${query}. ${"words ".repeat(40)}` })));

const search = tool({ inputSchema: z.object({ query: z.string() }), execute: async ({ query }) => found(query) });
const cite = tool({
  inputSchema: z.object({ ids: z.array(z.string()) }),
  execute: async ({ ids }) => `Registered ${ids.length} citation(s).`,
});

async function play(variant) {
  const [api, how, name, cites] = variant.split("/");
  const tools = cites ? { search, cite } : { search };
  const openai = createOpenAI({ baseURL: url, apiKey: `sk-test-toolless-${variant}` });
  const model = api === "chat" ? openai.chat(name) : openai.responses(name);
  const messages = [];
  const told = [];
  for (const question of ["Q1: What about alpha?", "Q2: What about beta?", "Q3: What about gamma?"]) {
    messages.push({ role: "user", content: question });
    const asked = { model, tools, messages, stopWhen: stepCountIs(cites ? 3 : 2), maxRetries: 0 };
    let result;
    if (how === "streamed") {
      result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
      await result.consumeStream();
    } else {
      result = await generateText(asked);
    }
    const steps = await result.steps;
    messages.push(...(await result.response).messages);
    told.push({ answer: await result.text, calls: steps.flatMap((step) => step.toolCalls.map((call) => call.toolName)) });
  }
  return told;
}

for (const variant of variants) console.log(JSON.stringify(await play(variant)));
