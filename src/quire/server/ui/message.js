// One message on the page: its text, its speed, and its actions.

import { copyWithFeedback, count, duration, el, rate, setChildren } from "./dom.js";
import { attachedFile, player, thumbnail } from "./images.js";
import { MarkdownView } from "./markdown.js";
import { shortName } from "./models.js";
import { splitThinking } from "./thinking.js";
import { CallView } from "./tools.js";

const REDRAW_MS = 50;
const SHARE = 4; // drawing takes at most about a quarter of the time
const LABELS = { user: "You", tool: "Result of a tool" };

/** Shows one message record and follows it while it grows. */
export class MessageView {
  /**
   * `actions(record)` gives {label, run} pairs for the foot of the message. `chat` gives `resultOf(call)`,
   * `serverOf(call)` and `versions()`, and takes `onCall(call)` when an answer with a call has ended,
   * `onResult(call, text)`, `onAllow(call, isForAll)`, `onDeny(call)` and `onVersion(number)`.
   */
  constructor(record, actions, chat) {
    this.record = record;
    this.chat = chat;
    this.text = new MarkdownView();
    this.drawMs = 0;
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
    this.draw(!record.running);
  }

  /** Shows another state of the same message. */
  take(record) {
    const isSame = JSON.stringify(record) === JSON.stringify(this.record);
    const calls = this.record.calls ?? []; // their views know them by identity
    record.calls?.forEach((call, i) => calls[i]?.id === call.id && (record.calls[i] = Object.assign(calls[i], call)));
    this.record = record;
    if (isSame && !record.calls?.length) return record.running ? null : this.drawFoot();
    if (record.running) this.update();
    else this.finish();
  }

  /** Redraws soon; several calls cause one drawing. */
  update() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      const begin = performance.now();
      this.draw(false);
      this.drawMs = performance.now() - begin;
      this.root.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    }, Math.max(REDRAW_MS, SHARE * this.drawMs));
  }

  /** Draws the final state. */
  finish() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.draw(true);
  }

  draw(isFinal) {
    if (this.isUser) this.drawQuestion();
    else if (this.record.role === "tool") this.drawResult();
    else this.drawAnswer(isFinal);
    this.root.classList.toggle("writing", !isFinal);
    if (isFinal) this.drawFoot();
  }

  drawQuestion() {
    const { content, images = [], sounds = [], attachments = [], numImages = 0 } = this.record;
    const lost = numImages > images.length ? "An earlier version of this page did not keep the images." : "";
    this.body.replaceChildren(
      ...images.map(thumbnail),
      ...sounds.map(player),
      ...attachments.map(attachedFile),
      content ? el("p", { className: "plain" }, content) : "",
      lost ? el("p", { className: "muted" }, lost) : "");
  }

  drawAnswer(isFinal) {
    const split = splitThinking(this.record.content);
    const thinking = this.record.reasoning || split.thinking;
    const parts = [];
    if (thinking) parts.push(this.drawThinking(thinking, isFinal || split.answer !== ""));
    if (split.answer) {
      this.text.show(split.answer, isFinal);
      parts.push(this.text.root);
    }
    for (const call of this.record.calls ?? []) parts.push(this.drawCall(call, isFinal));
    if (this.record.error) {
      parts.push(el("p", { className: "error", role: "alert" }, this.record.error));
    } else if (isFinal && parts.length === 0) {
      parts.push(el("p", { className: "muted" }, this.record.stopped ? "(stopped before its first word)" : "(an empty answer)"));
    }
    if (!isFinal && this.record.note) parts.push(el("p", { className: "muted", role: "status" }, this.record.note));
    setChildren(this.body, parts);
  }

  // The element is reused, so that it stays open or closed.
  drawThinking(text, isDone) {
    if (!this.thought) {
      const summary = el("summary", {});
      this.thoughtText = new MarkdownView();
      this.thought = el("details", { className: "thinking" }, summary, this.thoughtText.root);
    }
    this.thought.firstChild.textContent = isDone ? "Thought about it" : "Thinking…";
    this.thoughtText.show(text, isDone);
    return this.thought;
  }

  // As for the thinking, elements are reused.
  drawCall(call, isFinal) {
    let view = this.calls.find((one) => one.call === call);
    if (!view) this.calls.push((view = new CallView(call, this.chat)));
    view.draw(isFinal, this.chat.resultOf(call));
    if (isFinal && !this.record.stopped && !this.record.error) this.chat.onCall(call);
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
    const buttons = this.actions(this.record).map(({ label, run }) =>
      el("button", { type: "button", className: "link", onclick: () => run(this.record) }, label));
    const copy = el("button", { type: "button", className: "link" }, "Copy");
    copy.addEventListener("click", () =>
      copyWithFeedback(copy, splitThinking(this.record.content).answer));
    this.foot.replaceChildren(
      this.stats, el("span", { className: "actions" }, copy, ...buttons), this.drawVersions() ?? "");
  }

  /** `‹ 2 of 3 ›`, or null for a message with one version. */
  drawVersions() {
    const versions = this.chat.versions();
    if (!versions) return null;
    const { count: all, chosen } = versions;
    const step = (by, sign, label) => el("button", {
      type: "button", className: "link", "aria-label": label, title: label,
      disabled: chosen + by < 0 || chosen + by >= all,
      onclick: () => this.chat.onVersion(chosen + by),
    }, sign);
    return el("span", { className: "versions" },
      step(-1, "‹", "Earlier version"), `${chosen + 1} of ${all}`, step(1, "›", "Later version"));
  }
}

/** `the-model · 41.5 tokens/s · first token 32 ms · 96 tokens · 48 of 60 prompt tokens cached`. */
export function statsLine({ model, stats, stopped, finishReason }) {
  const parts = model ? [shortName(model)] : [];
  if (stats?.rate) parts.push(`${rate(stats.rate)} tokens/s`);
  if (stats?.ttft !== undefined) parts.push(`first token ${duration(stats.ttft)}`);
  if (stats?.completion) parts.push(`${count(stats.completion)} tokens`);
  if (stats?.prompt) parts.push(`${count(stats.cached)} of ${count(stats.prompt)} read from cache`);
  if (stopped) parts.push("stopped");
  else if (finishReason === "length") parts.push("cut at the length limit");
  return parts.join(" · ");
}
