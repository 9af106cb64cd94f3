// Drives npm @modelcontextprotocol/sdk 1.x; README.md describes the commands and events.

import { createRequire } from 'node:module';
import { CAPABILITIES, Questions, drive, observedFetch, target } from './common.mjs';

const [installed, where] = process.argv.slice(2);
const sdk = createRequire(`${installed}/`);
const { Client } = sdk('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = sdk('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { StdioClientTransport } = sdk('@modelcontextprotocol/sdk/client/stdio.js');
const schemas = sdk('@modelcontextprotocol/sdk/types.js');

const client = new Client({ name: 'ts1', version: '1' }, { capabilities: CAPABILITIES });
const { url, stdio } = target(where);
const transport = url
  ? new StreamableHTTPClientTransport(url, { fetch: observedFetch })
  : new StdioClientTransport(stdio);

const questions = new Questions();
for (const schema of [
  schemas.CreateMessageRequestSchema,
  schemas.ElicitRequestSchema,
  schemas.ListRootsRequestSchema,
]) {
  client.setRequestHandler(schema, ({ method, params }, { signal }) =>
    questions.ask(method, params, signal),
  );
}

const callTool = (params, options) => client.callTool(params, undefined, options);
await drive({ client, transport, questions, callTool });
