// The Vercel AI SDK with a search tool that has its results tagged over HTTP: `node tagged.mjs BASE_URL`.
import { generateText, stepCountIs, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { z } from "zod";

const [url] = process.argv.slice(2);
const API_KEY = "sk-test-tagged";
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mPgYmAAAAAiAAswjz+HAAAAAElFTkSuQmCC";

async function found(subject) {
  const results = [1, 2].map((number) => ({
    id: `${subject}-${number}`,
    content: `What ${subject} says, number ${number}: naïve “café” 😀.\n\n---\n\n[c9] not a chunk`,
    document_id: `doc-${subject}`,
    title: `About ${subject}`,
    uri: `https://kb.example/${subject}`,
    pictures: [{ data: PNG, reference: `#/pictures/${number}` }],
  }));
  const reply = await fetch(url.replace(/\/v1$/, "/evidence/v1/returns"), {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${API_KEY}` },
    body: JSON.stringify({ results, shape: "text" }),
  });
  return reply.json();
}

const tools = {
  search: tool({
    inputSchema: z.object({ query: z.string() }),
    execute: ({ query }) => found(query),
    toModelOutput: ({ output }) => ({
      type: "content",
      value: [
        { type: "text", text: output.text },
        ...output.pictures.flatMap((picture) => [
          { type: "text", text: picture.label },
          { type: "media", data: picture.url.split(",")[1], mediaType: "image/png" },
        ]),
      ],
    }),
  }),
  cite: tool({
    inputSchema: z.object({ ids: z.array(z.string()) }),
    execute: async ({ ids }) => `cited ${ids.length}`,
  }),
};
const model = createOpenAI({ baseURL: url, apiKey: API_KEY }).chat("gpt-4.1");
const messages = [];
for (const subject of ["Q1: What about alpha?", "Q2: What about beta?", "Q3: What about gamma?"]) {
  messages.push({ role: "user", content: subject });
  const result = await generateText({ model, tools, messages, stopWhen: stepCountIs(8), maxRetries: 0 });
  messages.push(...(await result.response).messages);
}
