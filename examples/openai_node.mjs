// The openai library for Node: a loop of its own around two tools. The proxy is nothing but its base URL.
import OpenAI from "openai";
import { QUESTIONS, search } from "./handbook.mjs";

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8080/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "sk-example",
});
const tool = (name, description, field, kind) => ({
  type: "function",
  function: { name, description, parameters: { type: "object", properties: { [field]: kind }, required: [field] } },
});
const tools = [
  tool("search", "Search the handbook.", "query", { type: "string" }),
  tool("cite", "Name what the answer rests on.", "ids", { type: "array", items: { type: "string" } }),
];
const messages = [{ role: "system", content: "Search, then cite, then answer." }];

for (const question of QUESTIONS) {
  messages.push({ role: "user", content: question });
  for (;;) {
    const { data, response } = await client.chat.completions
      .create({ model: process.env.OPENAI_MODEL ?? "gpt-4.1-mini", messages, tools })
      .withResponse();
    console.log(`  Evidence-Proxy: ${response.headers.get("evidence-proxy")}`);
    const reply = data.choices[0].message;
    messages.push(reply);
    if (!reply.tool_calls?.length) {
      console.log(`${question}\n  ${reply.content}\n`);
      break;
    }
    for (const call of reply.tool_calls) {
      const given = JSON.parse(call.function.arguments);
      const content = call.function.name === "search" ? JSON.stringify(search(given.query)) : `cited ${given.ids.length}`;
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}
