// Plays three questions through a real client, and prints what the client received: a line of JSON for each run.
//
//     node drive.mjs CLIENT BASE_URL...
//
// CLIENT is openai-node or ai-sdk. Each address is played to whole, then streamed.

const QUESTIONS = ["Q1: What of alpha?", "Q2: And of beta?", "Q3: And of gamma?"];
const INSTRUCTIONS = "Search, then cite, then answer.";
const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mPgYmAAAAAiAAswjz+HAAAAAElFTkSuQmCC";

const chunks = (query) =>
  JSON.stringify([1, 2].map((n) => ({ id: `${query}-${n}`, text: `Chunk ${n} of ${query}. ` + "words ".repeat(40) })));
const hasPicture = (query) => query.endsWith("left");

async function openaiRun(baseURL, stream) {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL, apiKey: "sk-test-node", maxRetries: 0 });
  const parameters = (name, kind) => ({ type: "object", properties: { [name]: kind }, required: [name] });
  const tools = [
    { type: "function", name: "search", parameters: parameters("query", { type: "string" }), strict: false },
    {
      type: "function",
      name: "cite",
      parameters: parameters("ids", { type: "array", items: { type: "string" } }),
      strict: false,
    },
  ];
  const received = [];
  const input = [];
  for (const content of QUESTIONS) {
    input.push({ role: "user", content });
    for (;;) {
      const asked = { model: "m", input, tools, instructions: INSTRUCTIONS };
      let response;
      if (stream) {
        for await (const event of await client.responses.create({ ...asked, stream: true })) {
          received.push(event);
          response = event.response ?? response;
        }
      } else {
        response = await client.responses.create(asked);
        const { output_text, _request_id, ...sent } = response;
        received.push(sent);
      }
      input.push(...response.output);
      const calls = response.output.filter((item) => item.type === "function_call");
      for (const call of calls) {
        const args = JSON.parse(call.arguments);
        let output = call.name === "cite" ? `cited ${args.ids.length}` : chunks(args.query);
        if (call.name === "search" && hasPicture(args.query)) {
          const image_url = "data:image/png;base64," + PNG;
          output = [{ type: "input_text", text: output }, { type: "input_image", image_url, detail: "auto" }];
        }
        input.push({ type: "function_call_output", call_id: call.call_id, output });
      }
      if (!calls.length) break;
    }
  }
  return received;
}

async function aiSdkRun(baseURL, stream) {
  const { generateText, streamText, stepCountIs, tool } = await import("ai");
  const { createOpenAI } = await import("@ai-sdk/openai");
  const { z } = await import("zod");
  const model = createOpenAI({ baseURL, apiKey: "sk-test-ai-sdk" }).responses("gpt-4.1");
  const tools = {
    search: tool({
      inputSchema: z.object({ query: z.string() }),
      execute: async ({ query }) => ({ query, text: chunks(query) }),
      toModelOutput: ({ output }) =>
        hasPicture(output.query)
          ? {
              type: "content",
              value: [
                { type: "text", text: output.text },
                { type: "media", data: PNG, mediaType: "image/png" },
              ],
            }
          : { type: "text", value: output.text },
    }),
    cite: tool({
      inputSchema: z.object({ ids: z.array(z.string()) }),
      execute: async ({ ids }) => `cited ${ids.length}`,
    }),
  };
  const received = [];
  const messages = [];
  for (const content of QUESTIONS) {
    messages.push({ role: "user", content });
    const asked = { model, tools, messages, system: INSTRUCTIONS, stopWhen: stepCountIs(8), maxRetries: 0 };
    let result;
    if (stream) {
      result = streamText(asked);
      for await (const part of result.fullStream) {
        if (part.type === "error") throw part.error;
        if (!part.type.startsWith("start") && !part.type.startsWith("finish")) received.push(part);
      }
    } else {
      result = await generateText(asked);
    }
    for (const step of await result.steps) {
      received.push({ content: step.content, finish: step.finishReason, id: step.response.id, usage: step.usage });
    }
    messages.push(...(await result.response).messages);
  }
  return received;
}

const RUNS = { "openai-node": openaiRun, "ai-sdk": aiSdkRun };
// The AI SDK draws an id of its own for each source.
const sent = (key, value) => (key === "id" && !/^(resp|msg|rs|fc|call)_|^\d+$/.test(value) ? undefined : value);
const [client, ...addresses] = process.argv.slice(2);
for (const address of addresses) {
  for (const stream of [false, true]) {
    console.log(JSON.stringify(await RUNS[client](address, stream), client === "ai-sdk" ? sent : undefined));
  }
}
