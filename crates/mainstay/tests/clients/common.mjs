// What both TypeScript drivers share; README.md describes the commands and events.

import readline from 'node:readline';

export function tell(event) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

/** The SDKs forget a token before they look at progress that came in one piece with the answer. */
const LAST_PROGRESS = /progress notification for an unknown token: .*"progress":(\d+),"total":\1\b/;

export function trouble(error) {
  const message = String(error?.message ?? error);
  if (!LAST_PROGRESS.test(message)) tell({ event: 'trouble', message });
}

/** A `fetch` that tells of each exchange. */
export async function observedFetch(url, init = {}) {
  const sent = new Headers(init.headers).get('mcp-session-id');
  const rpc = typeof init.body === 'string' ? JSON.parse(init.body).method : undefined;
  const exchange = { event: 'http', verb: init.method ?? 'GET', rpc, session: sent };
  try {
    const response = await fetch(url, init);
    const given = response.headers.get('mcp-session-id');
    tell({ ...exchange, status: response.status, given });
    return response;
  } catch (error) {
    // Aborting is how an SDK closes a stream.
    if (error?.name !== 'AbortError') tell({ ...exchange, status: 0, cause: String(error?.cause ?? error) });
    throw error;
  }
}

/** What the server asks of the client, answered at once or when told to. */
export class Questions {
  #answers = new Map([['roots/list', { roots: [] }]]);
  #open = new Map();
  #last = 0;

  prepare(method, result) {
    this.#answers.set(method, result);
  }

  answer(key, result) {
    this.#open.get(key)?.(result);
    this.#open.delete(key);
  }

  /** The answer to a question; `signal` fires when the server withdraws it. */
  ask(method, params, signal) {
    const key = ++this.#last;
    tell({ event: 'asked', key, method, params });
    if (this.#answers.has(method)) return this.#answers.get(method);
    return new Promise((resolve) => {
      this.#open.set(key, resolve);
      signal.addEventListener('abort', () => tell({ event: 'withdrawn', key }));
    });
  }
}

export const QUESTIONS = ['sampling/createMessage', 'elicitation/create', 'roots/list'];

export const CAPABILITIES = { sampling: {}, elicitation: {}, roots: { listChanged: true } };

/** Connects, obeys until told to close or until stdin ends, and closes. */
export async function drive({ client, transport, questions, callTool }) {
  client.onerror = trouble;
  client.fallbackNotificationHandler = async ({ method, params }) =>
    tell({ event: 'notification', method, params });
  let closing = false;
  client.onclose = () => closing || trouble('the client closed itself');
  await client.connect(transport);
  tell({ event: 'connected', capabilities: client.getServerCapabilities() });

  const inFlight = new Map();
  const requests = {
    'tools/call': callTool,
    'tools/list': (params, options) => client.listTools(params, options),
    'prompts/list': (params, options) => client.listPrompts(params, options),
    'prompts/get': (params, options) => client.getPrompt(params, options),
    'resources/list': (params, options) => client.listResources(params, options),
    'resources/templates/list': (params, options) => client.listResourceTemplates(params, options),
    'resources/read': (params, options) => client.readResource(params, options),
    'resources/subscribe': (params, options) => client.subscribeResource(params, options),
    'resources/unsubscribe': (params, options) => client.unsubscribeResource(params, options),
    'logging/setLevel': ({ level }, options) => client.setLoggingLevel(level, options),
    ping: (_, options) => client.ping(options),
  };
  const request = async ({ id, do: method, params, options, timeout }) => {
    const giveUp = new AbortController();
    inFlight.set(id, giveUp);
    const onprogress = (progress) => tell({ event: 'progress', id, ...progress });
    try {
      const limit = timeout && { timeout: timeout * 1000 };
      const result = await requests[method](params, { ...options, ...limit, signal: giveUp.signal, onprogress });
      tell({ event: 'result', id, result });
    } catch (error) {
      tell({ event: 'error', id, code: error?.code, message: String(error?.message ?? error) });
    } finally {
      inFlight.delete(id);
    }
  };

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    if (command.do === 'close') break;
    else if (command.do === 'cancel') inFlight.get(command.id)?.abort('no longer wanted');
    else if (command.do === 'answer') questions.answer(command.key, command.result);
    else if (command.do === 'answers') questions.prepare(command.method, command.result);
    else void request(command);
  }
  closing = true;
  await transport.terminateSession?.();
  await client.close();
  tell({ event: 'closed' });
  process.exit(0);
}

/** The URL or the command that the last argument names. */
export function target(text) {
  if (!text.startsWith('[')) return { url: new URL(text) };
  const [command, ...args] = JSON.parse(text);
  return { stdio: { command, args, env: process.env, stderr: 'inherit' } };
}
