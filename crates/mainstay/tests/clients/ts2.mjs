// Drives npm @modelcontextprotocol/client 2.x; README.md describes the commands and events.

import { createRequire } from 'node:module';
import { CAPABILITIES, QUESTIONS, Questions, drive, observedFetch, target } from './common.mjs';

const [installed, where] = process.argv.slice(2);
const sdk = createRequire(`${installed}/`);
const { Client, StreamableHTTPClientTransport } = sdk('@modelcontextprotocol/client');
const { StdioClientTransport } = sdk('@modelcontextprotocol/client/stdio');

const client = new Client({ name: 'ts2', version: '1' }, { capabilities: CAPABILITIES });
const { url, stdio } = target(where);
const transport = url
  ? new StreamableHTTPClientTransport(url, { fetch: observedFetch })
  : new StdioClientTransport(stdio);

const questions = new Questions();
for (const method of QUESTIONS) {
  client.setRequestHandler(method, ({ params }, { mcpReq }) =>
    questions.ask(method, params, mcpReq.signal),
  );
}

const callTool = (params, options) => client.callTool(params, options);
await drive({ client, transport, questions, callTool });
