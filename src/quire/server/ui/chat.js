// The open conversation: its messages, what is sent, and what can be done with an answer. runs.js
// follows the answers, also those of other conversations.

import { grown, newAnswer } from "./answers.js";
import { byId } from "./dom.js";
import { EndFollower } from "./follow.js";
import { Attachments } from "./images.js";
import { MessageView } from "./message.js";
import { showShortly } from "./notices.js";
import { findMessage, newId } from "./records.js";
import { MOST } from "./runs.js";
import { splitThinking } from "./thinking.js";
import { beginVersion, chooseVersion, cut, extend, versionsAt } from "./versions.js";

/** Shows one conversation; `app.js` selects it. */
export class Chat {
  /**
   * `state` gives `model()` and `request(messages, id, options)`; `conversations` and `runs` have all
   * conversations and answers; `servers` run calls of tools; `showRequest` shows the request of an
   * answer, and `onShown` is called when the open conversation has changed.
   */
  constructor(state, conversations, runs, servers, { showRequest, onShown }) {
    Object.assign(this, { state, conversations, runs, servers, showRequest, onShown });
    this.giving = Promise.resolve(); // results are stored one after the other
    this.conversation = null;
    this.isSending = false; // until the answer is stored
    this.editing = null; // the message whose new text is in the input box
    this.views = new Map(); // by the id of the message
    this.sent = new Map(); // requests of this tab by the id of the answer
    this.follower = new EndFollower();
    this.attachments = new Attachments();
    this.messages = byId("messages");
    this.prompt = byId("prompt");
    this.wire();
  }

  wire() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send(this.prompt.value);
      }
    });
    this.prompt.addEventListener("input", () => this.fitPrompt());
    byId("stop").addEventListener("click", () => this.stop());
    byId("cancel-edit").addEventListener("click", () => this.cancelEdit());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (event.target.closest?.(".shelf, .menu")) return; // it ends something there
      if (this.running || this.servers.running.size) this.stop();
      else this.cancelEdit();
    });
  }

  /** The answer that is being written in the open conversation, if there is one. */
  get running() {
    return this.conversation?.messages.find((one) => one.running && this.conversations.answers.has(one.id));
  }

  /** Shows a conversation. Answers in others go on; calls of tools there are stopped. */
  open(conversation) {
    this.servers.stop();
    this.cancelEdit();
    this.views.clear();
    this.show(conversation);
    this.follower.go();
  }

  /** Shows the conversation as it is now; views of messages that are shown already stay. */
  show(conversation) {
    this.conversation = conversation;
    for (const record of conversation.messages) this.fill(record);
    const before = [...this.messages.children];
    const roots = conversation.messages.map((record) => {
      const view = this.views.get(record.id);
      if (view) view.take(record);
      else this.views.set(record.id, this.viewOf(record));
      return this.views.get(record.id).root;
    });
    if (before.every((root, index) => root === roots[index])) this.messages.append(...roots.slice(before.length));
    else this.messages.replaceChildren(...roots);
    const ids = new Set(conversation.messages.map((one) => one.id));
    for (const id of this.views.keys()) if (!ids.has(id)) this.views.delete(id);
    this.refresh();
    this.follower.keep();
  }

  /** What has come of a running answer is not in its message yet. */
  fill(record) {
    if (!record.running) return;
    const answer = this.conversations.answers.get(record.id);
    if (answer) return Object.assign(record, structuredClone(grown(answer)));
    delete record.running;
    record.stopped = true;
  }

  viewOf(record) {
    return new MessageView(record, (one) => this.actionsOf(one), {
      resultOf: (call) => this.resultOf(call) ?? (this.isLast(record.id) ? null : ""),
      onResult: (call, text) => this.giveResult(record.id, call, text),
      serverOf: (call) => this.servers.stateOf(call),
      onAllow: (call, isForAll) => this.allow(record.id, call, isForAll),
      onDeny: (call) => this.giveResult(record.id, call, this.servers.deny()),
      onCall: (call) => queueMicrotask(() => this.runAllowed(record.id, call)), // its view is not ready
      versions: () => versionsAt(this.conversation, this.indexOf(record.id)),
      onVersion: (chosen) => this.chooseVersion(record.id, chosen),
    });
  }

  indexOf(id) {
    return this.conversation.messages.findIndex((one) => one.id === id);
  }

  /** Whether this is the last answer: its calls may still get results. */
  isLast(id) {
    const at = this.indexOf(id);
    return at >= 0 && this.conversation.messages.slice(at + 1).every((one) => one.role === "tool");
  }

  actionsOf(record) {
    if (record.role === "tool") return [];
    if (record.role === "user") return [{ label: "Edit", run: (one) => this.edit(one) }];
    const isCut = record.error || record.stopped || record.finishReason === "length";
    const mayContinue = isCut && !record.calls?.length && splitThinking(record.content).answer;
    return [
      ...(mayContinue ? [{ label: "Continue", run: (one) => this.continue(one) }] : []),
      { label: record.error ? "Retry" : "Again", run: (one) => this.again(one) },
      { label: "Request", run: (one) => this.showRequest(this.requestOf(one)) },
    ];
  }

  /** The request of an answer: as it was sent, or, after a reload, as it would be now. */
  requestOf({ id }) {
    return this.sent.get(id) ?? this.state.request(this.conversation.messages.slice(0, this.indexOf(id)), id);
  }

  async send(text) {
    if (!(text.trim() || !this.attachments.isEmpty)) return;
    if (!this.isFree()) return;
    const { editing } = this;
    const at = editing ? this.indexOf(editing.id) : this.conversation.messages.length;
    const asked = { id: newId(), role: "user", content: text, ...this.attachments.taken() };
    this.editing = null;
    this.prompt.value = "";
    this.fitPrompt();
    this.follower.go();
    await this.answer(this.conversation.messages.slice(0, at), [asked], Boolean(editing));
  }

  /** Whether an answer may begin here; says why not. */
  isFree() {
    if (this.isSending || this.running || this.servers.running.size || !this.state.model()) return false;
    if (!this.runs.hasRoom) showShortly(`${MOST} answers are being written. Stop one of them, or wait.`);
    return this.runs.hasRoom;
  }

  /** Adds messages after `before`, and asks for an answer to all. `isVersion`: the earlier end is set aside. */
  async answer(before, added, isVersion = false) {
    const model = this.state.model();
    const record = { id: newId(), role: "assistant", content: "", reasoning: "", calls: [], model, running: true };
    const messages = [...before, ...added];
    const earlier = isVersion ? this.conversation.messages[before.length].id : null;
    await this.begin(record, (id, shown) => this.state.request(messages, id, shown), (one) => {
      const first = one.messages.findIndex(({ id }) => id === earlier);
      if (first >= 0) beginVersion(one, first);
      extend(one, before, [...added, record]);
      one.model = model;
    });
  }

  /** Stores that an answer begins, with the change that it brings, and asks the server for it. */
  async begin(record, requestWith, mutate) {
    this.isSending = true;
    const { conversation } = this;
    try {
      await this.servers.ready();
      const request = requestWith(`resp_${newId()}`, conversation);
      const answer = newAnswer(structuredClone(record), conversation.id, request.body.request_id ?? null);
      this.sent.set(record.id, request);
      this.update(await this.runs.begin(record.id, request, () =>
        this.conversations.change(conversation, mutate, { begins: answer })));
    } finally {
      this.isSending = false;
    }
    this.follower.keep();
  }

  /** Goes on with an answer that was cut. */
  async continue({ id }) {
    if (!this.isFree()) return;
    const messages = this.conversation.messages.slice(0, this.indexOf(id) + 1);
    const record = messages.at(-1);
    await this.begin(record, (response, shown) => this.state.request(messages, response, shown, true), (one) => {
      const message = findMessage(one, id);
      for (const name of ["error", "stopped", "finishReason", "stats"]) delete message?.[name];
      if (message) message.running = true;
    });
  }

  /** Asks for a new version of this answer; the earlier one is kept, unless it is empty. */
  async again({ id }) {
    if (!this.isFree()) return;
    this.cancelEdit();
    const record = findMessage(this.conversation, id);
    const before = this.conversation.messages.slice(0, this.indexOf(id));
    if (record.error && !record.content) {
      await this.change((one) => {
        const at = one.messages.findIndex((message) => message.id === id);
        if (at >= 0) cut(one, at);
      });
      await this.answer(before, []);
    } else await this.answer(before, [], true);
  }

  /** Applies a change to the open conversation, and shows it. */
  async change(mutate) {
    this.update(await this.conversations.change(this.conversation, mutate));
  }

  /** Shows a state of the open conversation, unless another one is open now. */
  update(conversation) {
    if (conversation.id !== this.conversation.id) return;
    this.show(conversation);
    this.onShown();
  }

  /** What the user gave as the result of a call; null if nothing yet. */
  resultOf(call) {
    const found = this.conversation?.messages.find((one) => one.role === "tool" && one.callId === call.id);
    return found ? found.content : null;
  }

  /** Adds the result of a call. Once all calls of the answer have one, the model goes on. */
  giveResult(id, call, text) {
    const { conversation } = this;
    this.giving = this.giving.then(() => this.conversation.id === conversation.id && this.storeResult(id, call, text));
    return this.giving;
  }

  async storeResult(id, call, text) {
    if (this.isSending || this.running || this.resultOf(call) !== null) return;
    const result = { id: newId(), role: "tool", content: text, callId: call.id, name: call.name };
    const shown = this.conversation.messages;
    await this.change((one) => extend(one, shown, [result]));
    const { calls } = findMessage(this.conversation, id);
    if (calls.every((one) => this.resultOf(one) !== null) && this.isFree()) {
      await this.answer(this.conversation.messages, []);
    }
  }

  /** Runs a call of a tool that the user allows. */
  async allow(id, call, isForAll) {
    if (isForAll) this.servers.allow(call, this.conversation);
    const { conversation } = this;
    const text = await this.servers.run(call);
    if (text !== null && conversation.id === this.conversation.id) await this.giveResult(id, call, text);
  }

  runAllowed(id, call) {
    if (!this.isLast(id) || this.resultOf(call) !== null || !this.servers.mayBegin(call, this.conversation)) return;
    this.allow(id, call, false);
  }

  /** Shows the calls again: their servers, or what runs, have changed. */
  redrawCalls() {
    for (const view of this.views.values()) if (view.calls.length && !view.record.running) view.finish();
    if (this.conversation) this.refresh();
  }

  stop() {
    this.servers.stop();
    const { running } = this;
    if (running) this.runs.stop(running.id);
  }

  /** Shows what has come of an answer. `note`: why nothing comes. */
  grow(answer, note = "") {
    const view = answer.conversation === this.conversation?.id && this.views.get(answer.id);
    if (!view || !view.record.running) return;
    Object.assign(view.record, grown(answer), { note });
    view.update();
  }

  /** Reads the end of an answer to those who cannot see it. */
  announce({ error, content }) {
    byId("announcer").textContent = error ?? content.slice(0, 2000);
  }

  /** Puts a message's text in the input box; sending it begins a new version of the message. */
  edit(record) {
    if (this.running) return;
    this.cancelEdit();
    this.editing = record;
    this.prompt.value = record.content;
    this.attachments.set(record);
    this.fitPrompt();
    this.refresh();
    this.prompt.focus();
  }

  cancelEdit() {
    if (!this.editing) return;
    this.editing = null;
    this.prompt.value = "";
    this.attachments.set({});
    this.fitPrompt();
    this.refresh();
  }

  async chooseVersion(id, chosen) {
    if (this.isSending || this.running || this.servers.running.size) return;
    this.cancelEdit();
    const at = this.indexOf(id);
    await this.change((one) => {
      if (one.messages[at]?.id === id) chooseVersion(one, at, chosen);
    });
  }

  refresh() {
    const isBusy = Boolean(this.running || this.servers.running.size);
    byId("greeting").hidden = this.conversation.messages.length > 0;
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    byId("edit-note").hidden = this.editing === null;
    for (const [id, view] of this.views) view.root.classList.toggle("edited", id === this.editing?.id);
    this.messages.setAttribute("aria-busy", String(isBusy));
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, window.innerHeight * 0.4)}px`;
  }
}
