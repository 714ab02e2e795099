// A small client of the Model Context Protocol over streamable HTTP: tools are listed and called. It
// talks to other servers than this page's, and never sends the API key. Everything that they send is
// untrusted: sizes and times are bounded, and the page shows it as text.

const VERSION = "2025-06-18";
const VERSIONS = ["2024-11-05", "2025-03-26", VERSION, "2025-11-25"];
const MOST_TOOLS = 200;
const MOST_PAGES = 50;
const MOST_BYTES = 8 * 2 ** 20; // of one reply
const QUICK_MS = 15_000;
const CALL_MS = 300_000;
const GONE = "The server does not answer, or does not allow this page to call it (CORS).";

/** A failure of a server or of the connection. `isReply`: the server refused the request itself. */
export class McpError extends Error {
  constructor(message, { status = 0, isReply = false } = {}) {
    super(message);
    Object.assign(this, { status, isReply });
  }
}

/** A session with one server; it begins with the first request, and again if the server forgot it. */
export class McpClient {
  constructor(url, { quickMs = QUICK_MS, callMs = CALL_MS } = {}) {
    Object.assign(this, { url, quickMs, callMs, session: null, version: null, lastId: 0, starting: null });
  }

  /** The server's tools: {name, title, description, inputSchema}, not checked further. */
  async tools(signal = null) {
    const found = [];
    let cursor;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const result = await this.request("tools/list", cursor === undefined ? {} : { cursor }, signal, this.quickMs);
      if (!Array.isArray(result.tools)) throw new McpError("The server sent no list of tools.");
      found.push(...result.tools);
      if (found.length > MOST_TOOLS) throw new McpError(`The server has more than ${MOST_TOOLS} tools.`);
      cursor = result.nextCursor;
      if (typeof cursor !== "string") return found;
    }
    throw new McpError("The server's list of tools does not end.");
  }

  /** Calls a tool; the result as the server sent it. */
  call(name, given, signal = null) {
    return this.request("tools/call", { name, arguments: given }, signal, this.callMs);
  }

  /** Ends the session. The page may be going. */
  end() {
    if (!this.session) return;
    fetch(this.url, { ...OPTIONS, method: "DELETE", headers: this.headers(), keepalive: true }).catch(() => {});
    this.session = this.starting = null;
  }

  async request(method, params, signal, ms) {
    await this.begun(signal);
    try {
      return await this.exchange(method, params, signal, ms);
    } catch (error) {
      if (error.status !== 404 || !this.session) throw error; // 404: the session has ended
      this.session = this.starting = null;
      await this.begun(signal);
      return this.exchange(method, params, signal, ms);
    }
  }

  /** Begins the session once for all requests. */
  async begun(signal) {
    this.starting ??= this.begin().catch((error) => {
      this.starting = null;
      throw error;
    });
    await this.starting;
    signal?.throwIfAborted();
  }

  async begin() {
    this.version = null;
    const result = await this.exchange("initialize", {
      protocolVersion: VERSION, capabilities: {}, clientInfo: { name: "quire-page", version: "1" },
    }, null, this.quickMs);
    if (!VERSIONS.includes(result.protocolVersion)) {
      throw new McpError(`The server speaks another version of the protocol: ${String(result.protocolVersion).slice(0, 40)}.`);
    }
    this.version = result.protocolVersion;
    await this.notify({ method: "notifications/initialized" }, AbortSignal.timeout(this.quickMs));
  }

  headers() {
    return {
      "Content-Type": "application/json", Accept: "application/json, text/event-stream",
      ...(this.session ? { "Mcp-Session-Id": this.session } : {}),
      ...(this.version ? { "MCP-Protocol-Version": this.version } : {}),
    };
  }

  async post(message, signal) {
    let response;
    try {
      const body = JSON.stringify({ jsonrpc: "2.0", ...message });
      response = await fetch(this.url, { ...OPTIONS, method: "POST", headers: this.headers(), body, signal });
    } catch (error) {
      throw error instanceof TypeError ? new McpError(GONE) : error;
    }
    if (response.ok) return response;
    const said = (await bounded(response, 2000).catch(() => "")).slice(0, 300);
    throw new McpError(`The server answered ${response.status}. ${said}`.trim(), { status: response.status });
  }

  async notify(message, signal) {
    const response = await this.post(message, signal);
    response.body?.cancel().catch(() => {});
  }

  async exchange(method, params, signal, ms) {
    const id = (this.lastId += 1);
    const ends = AbortSignal.timeout(ms);
    const either = signal ? AbortSignal.any([signal, ends]) : ends;
    try {
      const response = await this.post({ id, method, params }, either);
      if (method === "initialize") this.session = response.headers.get("Mcp-Session-Id");
      for await (const message of messagesOf(response)) {
        if (message?.method && message.id !== undefined) this.refuse(message);
        else if (message?.id === id) return resultOf(message);
      }
      throw new McpError("The connection ended before the reply.");
    } catch (error) {
      if (either.aborted && method !== "initialize") {
        this.notify({ method: "notifications/cancelled", params: { requestId: id } }, AbortSignal.timeout(this.quickMs)).catch(() => {});
      }
      if (ends.aborted) throw new McpError(`The server did not answer within ${ms / 1000} s.`);
      if (either.aborted || error instanceof McpError) throw error;
      throw new McpError(error instanceof SyntaxError ? "The server's reply is not JSON." : "The connection broke.");
    }
  }

  /** Answers a request of the server: the page is alive, and does nothing else for it. */
  refuse({ id, method }) {
    const reply = method === "ping" ? { result: {} } : { error: { code: -32601, message: "Method not found" } };
    this.notify({ id, ...reply }, AbortSignal.timeout(this.quickMs)).catch(() => {});
  }
}

const OPTIONS = { credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" };

function resultOf({ result, error }) {
  if (error) throw new McpError(String(error.message ?? "The server refused the request.").slice(0, 2000), { isReply: true });
  if (result === null || typeof result !== "object") throw new McpError("The server sent no result.");
  return result;
}

/** The messages of a reply: a JSON text, or server-sent events. */
async function* messagesOf(response) {
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    yield* [JSON.parse(await bounded(response))].flat();
    return;
  }
  let rest = "";
  let data = [];
  for await (const text of texts(response)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      if (line !== "" || !data.length) continue;
      const event = data.join("\n");
      data = [];
      if (event) yield* [JSON.parse(event)].flat();
    }
  }
}

async function bounded(response, most = MOST_BYTES) {
  let text = "";
  for await (const more of texts(response, most)) text += more;
  return text;
}

/** The pieces of a reply. Throws if it is too large. */
async function* texts(response, most = MOST_BYTES) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      size += value.length;
      if (size > most) throw new McpError(`The server's reply is larger than ${most} bytes.`);
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
