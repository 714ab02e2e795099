// One message on the page: its text, its speed, and its actions.

import { el, copyWithFeedback, count, duration, rate } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { splitThinking } from "./thinking.js";
import { CallView } from "./tools.js";

const REDRAW_MS = 50;
const LABELS = { user: "You", tool: "Result of a tool" };

/** Shows one message record and follows it while it grows. */
export class MessageView {
  /**
   * `actions` are {label, run} pairs for the foot of the message. `tools` gives `resultOf(call)`
   * and takes `onResult(call, text)`.
   */
  constructor(record, actions, tools) {
    this.record = record;
    this.tools = tools;
    this.calls = [];
    this.isUser = record.role === "user";
    this.thought = null;
    this.body = el("div", { className: "body" });
    this.foot = el("div", { className: "foot" });
    this.stats = el("span", { className: "stats" });
    this.actions = actions;
    this.timer = 0;
    this.root = el(
      "article",
      { className: `message ${record.role}`, "aria-label": LABELS[record.role] ?? "Answer" },
      this.body,
      this.foot,
    );
    this.draw(true);
  }

  /** Redraws in the next frame; several calls cause one drawing. */
  update() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.draw(false);
      this.root.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    }, REDRAW_MS);
  }

  /** Draws the final state. */
  finish() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.draw(true);
  }

  draw(isFinal) {
    if (this.isUser) this.body.replaceChildren(el("p", { className: "plain" }, this.record.content));
    else if (this.record.role === "tool") this.drawResult();
    else this.drawAnswer(isFinal);
    this.root.classList.toggle("writing", !isFinal);
    if (isFinal) this.drawFoot();
  }

  drawAnswer(isFinal) {
    const split = splitThinking(this.record.content);
    const thinking = this.record.reasoning || split.thinking;
    const parts = [];
    if (thinking) parts.push(this.drawThinking(thinking, isFinal || split.answer !== ""));
    if (split.answer) parts.push(renderMarkdown(split.answer));
    for (const call of this.record.calls ?? []) parts.push(this.drawCall(call, isFinal));
    if (this.record.error) {
      parts.push(el("p", { className: "error", role: "alert" }, this.record.error));
    } else if (isFinal && parts.length === 0) {
      parts.push(el("p", { className: "muted" }, "(an empty answer)"));
    }
    this.body.replaceChildren(...parts);
  }

  // The element is reused, so that it stays open or closed.
  drawThinking(text, isDone) {
    if (!this.thought) {
      const summary = el("summary", {});
      this.thought = el("details", { className: "thinking" }, summary, el("div", {}));
    }
    this.thought.firstChild.textContent = isDone ? "Thought about it" : "Thinking…";
    this.thought.lastChild.replaceChildren(renderMarkdown(text));
    return this.thought;
  }

  // As for the thinking, elements are reused.
  drawCall(call, isFinal) {
    let view = this.calls.find((one) => one.call === call);
    if (!view) this.calls.push((view = new CallView(call, this.tools.onResult)));
    view.draw(isFinal, this.tools.resultOf(call));
    return view.root;
  }

  drawResult() {
    const { name, content } = this.record;
    const summary = el("summary", {}, el("span", { className: "muted" }, "Result of "), el("code", {}, name));
    const text = el("pre", {}, el("code", {}, content));
    this.body.replaceChildren(el("details", { className: "call" }, summary, text));
  }

  drawFoot() {
    this.stats.textContent = this.isUser ? "" : statsLine(this.record);
    const buttons = this.actions.map(({ label, run }) =>
      el("button", { type: "button", className: "link", onclick: () => run(this.record) }, label));
    const copy = el("button", { type: "button", className: "link" }, "Copy");
    copy.addEventListener("click", () =>
      copyWithFeedback(copy, splitThinking(this.record.content).answer));
    this.foot.replaceChildren(this.stats, el("span", { className: "actions" }, copy, ...buttons));
  }
}

/** `41.5 tokens/s · first token 32 ms · 96 tokens · 48 of 60 prompt tokens cached`. */
export function statsLine({ stats, stopped, finishReason }) {
  const parts = [];
  if (stats?.rate) parts.push(`${rate(stats.rate)} tokens/s`);
  if (stats?.ttft !== undefined) parts.push(`first token ${duration(stats.ttft)}`);
  if (stats?.completion) parts.push(`${count(stats.completion)} tokens`);
  if (stats?.prompt) parts.push(`${count(stats.cached)} of ${count(stats.prompt)} read from cache`);
  if (stopped) parts.push("stopped");
  else if (finishReason === "length") parts.push("cut at the length limit");
  return parts.join(" · ");
}
