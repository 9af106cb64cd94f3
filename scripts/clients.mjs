// What the AI clients of scripts/clients reach besides Mainstay, all on loopback:
//
// - A model. Offered the tool `env` of the server `ours`, it asks it for the variable PROOF once, and
//   then has nothing more to say. It speaks the four languages of the clients: Anthropic's messages,
//   OpenAI's chat completions and responses, Gemini's contents. It writes down `offered TOOL` for each
//   tool, and `answered` once it is told what the variable says.
// - A proxy that lets nobody through and writes down where they wanted to go.
//
// usage: node clients.mjs DIRECTORY PROOF
//
// Writes `model.log` and `proxy.log` there; then `ports`, the two ports, when both are listening.

import { appendFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

// Every client has a way of its own to put the two names together.
const WANTED = /ours[_-]+env$/;
const ARGUMENTS = { name: "PROOF" };

const [directory, proof] = process.argv.slice(2);
const note = (file, line) => appendFileSync(join(directory, file), `${line}\n`);

const events = (list) =>
  list.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join("");
const chunks = (list) => list.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("");

const messages = {
  path: /\/messages$/,
  tools: ({ tools = [] }) => tools,
  say: (tool) => {
    const usage = { input_tokens: 1, output_tokens: 1 };
    const [block, delta, stop_reason] = tool
      ? [
          { type: "tool_use", id: "toolu_1", name: tool.name, input: {} },
          { type: "input_json_delta", partial_json: JSON.stringify(ARGUMENTS) },
          "tool_use",
        ]
      : [{ type: "text", text: "" }, { type: "text_delta", text: "Done." }, "end_turn"];
    const message = { id: "msg_1", type: "message", role: "assistant", model: "none", content: [] };
    return events([
      { type: "message_start", message: { ...message, stop_reason: null, usage } },
      { type: "content_block_start", index: 0, content_block: block },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason, stop_sequence: null }, usage },
      { type: "message_stop" },
    ]);
  },
};

const completions = {
  path: /\/chat\/completions$/,
  tools: ({ tools = [] }) => tools.map((tool) => tool.function),
  say: (tool) => {
    const chunk = { id: "chat_1", object: "chat.completion.chunk", created: 1, model: "none" };
    const call = { index: 0, id: "call_1", type: "function" };
    const [delta, finish_reason] = tool
      ? [
          {
            tool_calls: [
              { ...call, function: { name: tool.name, arguments: JSON.stringify(ARGUMENTS) } },
            ],
          },
          "tool_calls",
        ]
      : [{ content: "Done." }, "stop"];
    const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
    return (
      chunks([
        { ...chunk, choices: [{ index: 0, delta: { role: "assistant", ...delta }, finish_reason: null }] },
        { ...chunk, choices: [{ index: 0, delta: {}, finish_reason }], usage },
      ]) + "data: [DONE]\n\n"
    );
  },
};

const responses = {
  path: /\/responses$/,
  tools: ({ tools = [] }) =>
    tools.flatMap((tool) =>
      tool.type === "namespace"
        ? tool.tools.map(({ name }) => ({ name, namespace: tool.name }))
        : [tool],
    ),
  say: (tool) => {
    const item = tool
      ? {
          type: "function_call",
          id: "fc_1",
          call_id: "call_1",
          name: tool.name,
          namespace: tool.namespace,
          arguments: JSON.stringify(ARGUMENTS),
        }
      : {
          type: "message",
          id: "msg_1",
          role: "assistant",
          content: [{ type: "output_text", text: "Done." }],
        };
    const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
    return events([
      { type: "response.created", response: { id: "resp_1" } },
      { type: "response.output_item.done", output_index: 0, item },
      { type: "response.completed", response: { id: "resp_1", output: [item], usage } },
    ]);
  },
};

const contents = {
  path: /:(streamG|g)enerateContent$/,
  tools: ({ tools = [] }) => tools.flatMap((tool) => tool.functionDeclarations ?? []),
  say: (tool) => {
    const part = tool ? { functionCall: { name: tool.name, args: ARGUMENTS } } : { text: "Done." };
    return chunks([
      {
        candidates: [{ index: 0, content: { role: "model", parts: [part] }, finishReason: "STOP" }],
        usageMetadata: { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 },
      },
    ]);
  },
};

const fullName = ({ namespace, name }) => (namespace ? `${namespace}__${name}` : String(name));

const languages = [messages, completions, responses, contents];

function think(language, text) {
  const tools = language.tools(JSON.parse(text));
  for (const tool of tools) note("model.log", `offered ${fullName(tool)}`);
  if (text.includes(proof)) {
    note("model.log", "answered");
    return language.say(undefined);
  }
  return language.say(tools.find((tool) => WANTED.test(fullName(tool))));
}

const model = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  const text = (await request.setEncoding("utf8").toArray()).join("");
  const language = languages.find(({ path }) => path.test(pathname));
  if (request.method !== "POST" || !language) {
    response.writeHead(404).end();
    return;
  }
  response.writeHead(200, { "content-type": "text/event-stream" }).end(think(language, text));
});

const proxy = createServer((request, response) => {
  note("proxy.log", request.headers.host);
  response.writeHead(403).end();
});
proxy.on("connect", (request, socket) => {
  note("proxy.log", request.url);
  socket.on("error", () => {}).end("HTTP/1.1 403 Forbidden\r\n\r\n");
});

const ports = [];
for (const server of [model, proxy]) {
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  ports.push(server.address().port);
}
writeFileSync(join(directory, "ports"), `${ports.join(" ")}\n`);
