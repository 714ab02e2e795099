// Tools on the page: the list in the settings, calls in a message, and the results of calls.

import { byId, el } from "./dom.js";
import { parsed, toolFrom, toolsOf } from "./request.js";

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
  /** `onResult(call, text)` is called when the user gives the result. */
  constructor(call, onResult) {
    this.call = call;
    this.summary = el("summary", {});
    this.given = el("pre", {}, el("code", {}));
    this.box = el("textarea", {
      rows: 2, placeholder: "What the tool returns", "aria-label": `Result of ${call.name}`,
    });
    const send = el("button", { type: "button", className: "button", onclick: () => {
      onResult(call, this.box.value);
    } }, "Give result");
    this.answer = el("div", { className: "result", hidden: true }, this.box, send);
    this.root = el("details", { className: "call" }, this.summary, this.given, this.answer);
  }

  /** Shows the call as it is now. `result`: its result; null: none was given. */
  draw(isFinal, result) {
    const { name, arguments: given } = this.call;
    const value = parsed(given);
    this.summary.replaceChildren(
      el("span", { className: "muted" }, isFinal ? "Calls " : "Calling… "),
      el("code", {}, name), shortly(value));
    this.given.firstChild.textContent = value === null ? given : JSON.stringify(value, null, 2);
    const wasAsked = !this.answer.hidden;
    this.answer.hidden = !isFinal || result !== null;
    if (wasAsked === this.answer.hidden) this.root.open = !this.answer.hidden;
  }
}

/** `(city: "Paris")`, or nothing if it would be long. */
function shortly(value) {
  if (value === null || typeof value !== "object") return "";
  const text = Object.entries(value).map(([key, one]) => `${key}: ${JSON.stringify(one)}`).join(", ");
  return text.length <= 60 ? `(${text})` : "(…)";
}
