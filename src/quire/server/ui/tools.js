// Tools on the page: the list in the settings, calls in a message, and the results of calls.

import { byId, el } from "./dom.js";
import { parsed, toolFrom, toolsOf } from "./request.js";
import { plain } from "./tool_servers.js";

const EXAMPLE = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

/** The list of tools in the settings dialog. `settings.tools` is the JSON text of all. */
export class ToolList {
  constructor(settings) {
    this.settings = settings;
    this.text = byId("new-tool");
    this.error = byId("tool-error");
    byId("add-tool").addEventListener("click", () => this.add());
    byId("example-tool").addEventListener("click", () => {
      this.text.value = JSON.stringify(EXAMPLE, null, 2);
      this.text.focus();
      this.text.setSelectionRange(0, 0);
      this.text.scrollTop = 0;
    });
  }

  add() {
    try {
      const tool = toolFrom(this.text.value);
      const others = toolsOf(this.settings).filter((one) => one.function.name !== tool.function.name);
      this.save([...others, tool]);
      this.text.value = "";
      this.error.textContent = "";
    } catch (error) {
      this.error.textContent = error.message;
    }
  }

  save(tools) {
    this.settings.tools = tools.length ? JSON.stringify(tools) : "";
    this.draw();
  }

  draw() {
    const tools = toolsOf(this.settings);
    byId("tool-list").replaceChildren(...tools.map((tool) => {
      const { name, description } = tool.function;
      const remove = () => this.save(tools.filter((one) => one !== tool));
      return el("li", {},
        el("code", {}, name), el("span", { className: "muted" }, description ?? ""),
        el("button", { type: "button", className: "link", "aria-label": `Remove ${name}`,
          onclick: remove }, "Remove"));
    }));
  }
}

/** A call in an answer, folded: its name and arguments, and a box for its result. */
export class CallView {
  /** `chat`: as of a message's view. */
  constructor(call, chat) {
    Object.assign(this, { call, chat });
    this.summary = el("summary", {});
    this.given = el("pre", {}, el("code", {}));
    this.box = el("textarea", {
      rows: 2, placeholder: "What the tool returns", "aria-label": `Result of ${call.name}`,
    });
    const send = el("button", { type: "button", className: "button", onclick: () => {
      chat.onResult(call, this.box.value);
    } }, "Give result");
    this.answer = el("div", { className: "result", hidden: true }, this.box, send);
    this.state = el("p", { className: "muted", role: "status" });
    this.error = el("p", { className: "error", role: "alert" });
    const button = (label, run, kind = "") =>
      el("button", { type: "button", className: `button ${kind}`, onclick: run }, label);
    this.choice = el("div", { className: "choice" },
      button("Allow once", () => chat.onAllow(call, false), "primary"),
      button("Allow in this conversation", () => chat.onAllow(call, true)),
      button("Deny", () => chat.onDeny(call)));
    this.ask = el("div", { hidden: true }, this.state, this.error, this.choice);
    this.root = el("details", { className: "call" }, this.summary, this.given, this.answer, this.ask);
  }

  /** Shows the call as it is now. `result`: its result; null: none was given. */
  draw(isFinal, result) {
    const { name, arguments: given } = this.call;
    const value = parsed(given);
    this.summary.replaceChildren(
      el("span", { className: "muted" }, isFinal ? "Calls " : "Calling… "),
      el("code", {}, name), shortly(value));
    this.given.firstChild.textContent = plain(value === null ? given : JSON.stringify(value, null, 2));
    const wasAsked = this.isAsked;
    const server = isFinal && result === null ? this.chat.serverOf(this.call) : null;
    this.answer.hidden = !isFinal || result !== null || server !== null;
    this.ask.hidden = server === null;
    if (server) this.drawServer(server);
    if (wasAsked !== this.isAsked) this.root.open = this.isAsked;
  }

  get isAsked() {
    return !this.answer.hidden || !this.ask.hidden;
  }

  /** Asks whether the call may run, or shows that it runs. */
  drawServer({ server, tool, isRunning, error }) {
    const where = ["the tool ", el("code", {}, plain(tool)), " of the server ", el("b", {}, plain(server))];
    this.state.replaceChildren(...(isRunning ? ["Running ", ...where, "…"] : ["May the page call ", ...where, " with these arguments?"]));
    this.error.textContent = error;
    this.choice.hidden = isRunning;
  }
}

/** `(city: "Paris")`, or nothing if it would be long. */
function shortly(value) {
  if (value === null || typeof value !== "object") return "";
  const text = Object.entries(value).map(([key, one]) => `${key}: ${JSON.stringify(one)}`).join(", ");
  return text.length <= 60 ? `(${plain(text)})` : "(…)";
}
