// The Vercel AI SDK: its own tool loop, whose messages are handed on from question to question.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { QUESTIONS, search } from "./handbook.mjs";

const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8080/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "sk-example",
});
const tools = {
  search: tool({
    description: "Search the handbook.",
    inputSchema: z.object({ query: z.string() }),
    execute: async ({ query }) => search(query),
  }),
  cite: tool({
    description: "Name what the answer rests on.",
    inputSchema: z.object({ ids: z.array(z.string()) }),
    execute: async ({ ids }) => `cited ${ids.length}`,
  }),
};

let messages = [];
for (const question of QUESTIONS) {
  messages.push({ role: "user", content: question });
  const result = await generateText({
    model: openai.chat(process.env.OPENAI_MODEL ?? "gpt-4.1-mini"),
    system: "Search, then cite, then answer.",
    messages,
    tools,
    stopWhen: stepCountIs(8),
  });
  messages = [...messages, ...result.response.messages];
  console.log(`${question}\n  ${result.text}\n`);
}
