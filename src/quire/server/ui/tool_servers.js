// Tool servers (Model Context Protocol) on the page: their tools, the calls that the user allows, and
// their part of the settings. A call runs only after the user has allowed it.

import { byId, el } from "./dom.js";
import { McpClient } from "./mcp.js";
import { parsed, toolsOf } from "./request.js";

const MOST_CHARS = 50_000; // of a result
const MOST_OWN = 20;
const DESCRIPTION_CHARS = 4000;
const WAIT_MS = 5000; // a message waits so long for servers that begin
const DENIED = "The user did not allow this call.";

/** Untrusted text without characters that are not seen or that change the order of others. */
export const plain = (text) =>
  String(text).replace(/[\p{Cc}\p{Cf}]/gu, (one) => ("\n\t\r\u200c\u200d".includes(one) ? one : "\ufffd"));

export class ToolServers {
  /** `onNews` is called when a call may be shown otherwise. */
  constructor(settings, save, onNews) {
    Object.assign(this, { settings, save, onNews });
    this.given = { servers: [], allows_own: false };
    this.links = new Map(); // by URL: {name, url, client, tools, numBroken, error, ready}
    this.allowed = new Set(); // of tools in conversations, until the page is left
    this.begun = new Set(); // ids of calls: none begins twice by itself
    this.running = new Map(); // by the id of a call: its AbortController
    this.errors = new Map(); // by the id of a call
    byId("add-server").addEventListener("click", () => this.add());
    addEventListener("pagehide", () => { for (const { client } of this.links.values()) client.end(); });
  }

  /** What the user has chosen: `off`, URLs that are not used, and `own`, further URLs. */
  get choice() {
    const { off, own } = parsed(this.settings.servers) ?? {};
    const list = (value) => (Array.isArray(value) ? value.filter((one) => typeof one === "string") : []);
    return { off: list(off), own: this.given.allows_own ? list(own).filter((one) => URL.canParse(one)).slice(0, MOST_OWN) : [] };
  }

  choose(choice) {
    this.settings.servers = JSON.stringify(choice);
    this.save(this.settings);
    this.connect();
  }

  /** All servers, {name, url, isOwn}. */
  all() {
    const { servers } = this.given;
    const own = this.choice.own.filter((url) => servers.every((one) => one.url !== url));
    return [...servers, ...own.map((url) => ({ name: new URL(url).host, url, isOwn: true }))];
  }

  /** Takes what this page's server says about tool servers. */
  take(given) {
    if (JSON.stringify(given) === JSON.stringify(this.given)) return;
    this.given = given;
    this.connect();
  }

  /** Begins sessions with the servers that are used, and ends the others. */
  connect() {
    const { off } = this.choice;
    const used = this.all().filter(({ url }) => !off.includes(url));
    for (const [url, link] of this.links) {
      if (used.some((one) => one.url === url)) continue;
      link.client.end();
      this.links.delete(url);
    }
    for (const server of used) if (!this.links.has(server.url)) this.open(server);
    this.draw();
    this.onNews();
  }

  open({ name, url }) {
    const link = { name, url, client: new McpClient(url), tools: null, error: "" };
    this.links.set(url, link);
    link.ready = link.client.tools().then(
      (tools) => {
        link.tools = tools.map(checkedTool).filter(Boolean);
        link.numBroken = tools.length - link.tools.length;
      },
      (error) => { link.error = plain(error.message); },
    ).then(() => { this.draw(); this.onNews(); });
  }

  /** Waits a short time for the servers that begin. */
  ready() {
    const waiting = [...this.links.values()].map((one) => one.ready);
    return Promise.race([Promise.all(waiting), new Promise((resolve) => setTimeout(resolve, WAIT_MS))]);
  }

  /** By the name that the model reads: {link, tool}. Two tools never share a name. */
  named() {
    const taken = new Set(toolsOf(this.settings).map((one) => one.function.name));
    const named = new Map();
    for (const link of this.links.values()) {
      for (const tool of link.tools ?? []) {
        const base = tool.name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, 60);
        let name = base;
        for (let i = 2; taken.has(name); i += 1) name = `${base}_${i}`;
        taken.add(name);
        named.set(name, { link, tool });
      }
    }
    return named;
  }

  /** The tools in the form of the API. */
  tools() {
    return [...this.named()].map(([name, { tool: { description, inputSchema: parameters } }]) =>
      ({ type: "function", function: { name, description, parameters } }));
  }

  /** Where a call goes, and its state: {server, tool, isRunning, error}; null: the user gives the result. */
  stateOf(call) {
    const found = this.named().get(call.name);
    if (!found) return null;
    const { link: { name: server, url }, tool: { name: tool } } = found;
    return { server, url, tool, isRunning: this.running.has(call.id), error: this.errors.get(call.id) ?? "" };
  }

  keyOf({ url, tool }, conversation) {
    return JSON.stringify([conversation.id, url, tool]);
  }

  allow(call, conversation) {
    this.allowed.add(this.keyOf(this.stateOf(call), conversation));
  }

  /** Whether the user has allowed this call before it came. It is true once. */
  mayBegin(call, conversation) {
    const state = this.stateOf(call);
    return state !== null && !this.begun.has(call.id) && this.allowed.has(this.keyOf(state, conversation));
  }

  deny() {
    return DENIED;
  }

  /** Runs a call. The text of its result; null: it was stopped, or it failed and may run again. */
  async run(call) {
    const found = this.named().get(call.name);
    if (!found || this.running.has(call.id)) return null;
    this.begun.add(call.id);
    this.errors.delete(call.id);
    const given = call.arguments.trim() ? parsed(call.arguments) : {};
    if (given === null || typeof given !== "object" || Array.isArray(given)) return "Error: the arguments are not a JSON object.";
    const abort = new AbortController();
    this.running.set(call.id, abort);
    this.onNews();
    try {
      return resultText(await found.link.client.call(found.tool.name, given, abort.signal));
    } catch (error) {
      if (error.isReply) return cut(`Error: ${plain(error.message)}`);
      this.errors.set(call.id, abort.signal.aborted ? "Stopped." : plain(error.message));
      return null;
    } finally {
      this.running.delete(call.id);
      this.onNews();
    }
  }

  stop() {
    for (const abort of this.running.values()) abort.abort();
  }

  add() {
    const { off, own } = this.choice;
    let url = null;
    try { url = new URL(byId("new-server").value.trim()); } catch { /* it is refused below */ }
    const isGood = /^https?:$/.test(url?.protocol) && !url.username && !url.password;
    const problem = !isGood ? "Write a URL without a password, such as http://localhost:8931/mcp."
      : this.all().some((one) => one.url === url.href) ? "This server is in the list."
        : own.length >= MOST_OWN ? `The list has ${MOST_OWN} servers; remove one.` : "";
    byId("server-error").textContent = problem;
    if (problem) return;
    byId("new-server").value = "";
    this.choose({ off, own: [...own, url.href] });
  }

  /** Draws the list in the settings. */
  draw() {
    const all = this.all();
    const only = this.given.only_terminal ?? [];
    byId("servers").hidden = !all.length && !only.length && !this.given.allows_own;
    byId("own-server").hidden = !this.given.allows_own;
    byId("server-list").replaceChildren(...all.map((server) => this.drawServer(server)),
      ...(only.length ? [el("li", { className: "muted" }, `Only for the terminal: ${only.map(plain).join(", ")}`)] : []));
  }

  drawServer({ name, url, isOwn }) {
    const { off, own } = this.choice;
    const link = this.links.get(url);
    const toggle = ({ target }) => this.choose({ off: target.checked ? off.filter((one) => one !== url) : [...off, url], own });
    const remove = () => this.choose({ off: off.filter((one) => one !== url), own: own.filter((one) => one !== url) });
    const reopen = () => { this.links.delete(url); this.connect(); };
    return el("li", {},
      el("label", {}, el("input", { type: "checkbox", checked: Boolean(link), onchange: toggle }),
        el("b", {}, plain(name)), el("span", { className: "muted" }, plain(url))),
      !link ? null : link.error ? el("p", { className: "error", role: "alert" }, link.error, " ",
        el("button", { type: "button", className: "link", onclick: reopen }, "Try again"))
        : !link.tools ? el("p", { className: "muted" }, "Connecting…") : drawTools(link),
      isOwn ? el("button", { type: "button", className: "link", "aria-label": `Remove ${name}`, onclick: remove }, "Remove") : null);
  }
}

function drawTools({ tools, numBroken }) {
  const broken = numBroken ? `; ${numBroken} without a name or a schema cannot be used` : "";
  return el("details", {},
    el("summary", { className: "muted" }, `${tools.length} ${tools.length === 1 ? "tool" : "tools"}${broken}`),
    el("ul", {}, tools.map(({ name, description }) =>
      el("li", {}, el("code", {}, name), " ", el("span", { className: "muted" }, description)))));
}

/** A tool of an untrusted server, or null. */
function checkedTool(value) {
  const { name, description, inputSchema } = value ?? {};
  if (typeof name !== "string" || !name || name.length > 200) return null;
  if (inputSchema === null || typeof inputSchema !== "object" || Array.isArray(inputSchema)) return null;
  const text = typeof description === "string" ? plain(description.slice(0, DESCRIPTION_CHARS)) : "";
  return { name, description: text, inputSchema };
}

function resultText({ content, structuredContent, isError }) {
  const parts = Array.isArray(content) ? content.map(partText) : [];
  if (!parts.length && structuredContent !== undefined) parts.push(JSON.stringify(structuredContent));
  return cut(plain((isError ? "Error: " : "") + parts.join("\n")));
}

function partText(part) {
  if (part?.type === "text") return String(part.text);
  if (typeof part?.resource?.text === "string") return part.resource.text;
  if (part?.type === "resource_link") return String(part.uri);
  return `[${part?.mimeType ?? part?.resource?.mimeType ?? part?.type ?? "content"}: the page passes on texts only]`;
}

/** Says in the text itself that it was cut. */
function cut(text) {
  if (text.length <= MOST_CHARS) return text;
  return `${text.slice(0, MOST_CHARS)}\n[The result has ${text.length} characters; the page cut it after ${MOST_CHARS}.]`;
}
