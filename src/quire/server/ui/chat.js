// The conversation: sends, streams, stops, and shows. Owns the message list and the composer.

import { explain, measure, take } from "./answers.js";
import { streamAnswer } from "./api.js";
import { byId } from "./dom.js";
import { EndFollower } from "./follow.js";
import { Attachments } from "./images.js";
import { MessageView } from "./message.js";
import { beginVersion, chooseVersion, cut, versionsAt } from "./versions.js";

/** Shows one conversation; `app.js` selects it. */
export class Chat {
  /**
   * `state` gives `model()` and `request(messages)`; `onChange` is called when an answer begins
   * and after every finished change, `showRequest` with the request of an answer.
   */
  constructor(state, onChange, showRequest) {
    this.state = state;
    this.onChange = onChange;
    this.showRequest = showRequest;
    this.conversation = null;
    this.abort = null;
    this.writing = null; // the record of the answer that is being streamed
    this.editing = null; // the message whose new text is in the input box
    this.views = new Map();
    this.sent = new WeakMap();
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
      if (this.abort) this.stop();
      else this.cancelEdit();
    });
  }

  /** Shows a conversation; stops an answer that is being generated in another one. */
  open(conversation) {
    this.stop();
    this.cancelEdit();
    this.conversation = conversation;
    this.showMessages();
    this.follower.go();
  }

  showMessages() {
    this.views.clear();
    const views = this.conversation.messages.map((record) => this.viewOf(record));
    this.messages.replaceChildren(...views.map((view) => view.root));
    this.refresh();
  }

  viewOf(record) {
    const view = new MessageView(record, this.actionsOf(record), {
      resultOf: (call) => this.resultOf(call),
      onResult: (call, text) => this.giveResult(record, call, text),
      versions: () => versionsAt(this.conversation, this.conversation.messages.indexOf(record)),
      onVersion: (chosen) => this.chooseVersion(record, chosen),
    });
    this.views.set(record, view);
    return view;
  }

  actionsOf(record) {
    if (record.role === "tool") return [];
    if (record.role === "user") return [{ label: "Edit", run: (one) => this.edit(one) }];
    return [
      { label: "Request", run: (one) => this.showRequest(this.requestOf(one)) },
      { label: "Again", run: (one) => this.again(one) },
    ];
  }

  /** The request of an answer: as it was sent, or, after a reload, as it would be now. */
  requestOf(record) {
    if (this.sent.has(record)) return this.sent.get(record);
    const before = this.conversation.messages.indexOf(record);
    return this.state.request(this.conversation.messages.slice(0, before));
  }

  add(record) {
    this.conversation.messages.push(record);
    const view = this.viewOf(record);
    this.messages.append(view.root);
    this.refresh();
    return view;
  }

  async send(text) {
    if (this.abort || !this.state.model() || !(text.trim() || this.attachments.urls.length)) return;
    if (this.editing) {
      beginVersion(this.conversation, this.conversation.messages.indexOf(this.editing));
      this.editing = null;
      this.showMessages();
    }
    this.prompt.value = "";
    this.fitPrompt();
    const images = this.attachments.taken();
    this.add({ role: "user", content: text, ...(images.length ? { images, numImages: images.length } : {}) });
    this.follower.go();
    await this.answer();
  }

  /** Requests an answer to the current messages. */
  async answer() {
    const conversation = this.conversation;
    const record = { role: "assistant", content: "", reasoning: "", calls: [] };
    const request = this.state.request(conversation.messages);
    this.sent.set(record, request);
    const view = this.add(record);
    view.draw(false);
    this.abort = new AbortController();
    this.writing = record;
    this.refresh();
    this.follower.keep();
    this.onChange(conversation);
    const clock = { sent: performance.now(), first: 0, last: 0, pieces: 0 };
    try {
      for await (const piece of streamAnswer(request.path, request.body, this.abort.signal)) {
        take(record, piece, clock);
        view.update();
      }
    } catch (error) {
      if (error.name === "AbortError") record.stopped = true;
      else record.error = explain(error);
    }
    measure(record, clock);
    this.abort = null;
    this.writing = null;
    view.finish();
    this.refresh();
    this.follower.keep();
    byId("announcer").textContent = record.error ?? record.content.slice(0, 2000);
    this.onChange(conversation);
  }

  /** What the user gave as the result of a call; null if nothing yet. */
  resultOf(call) {
    const found = this.conversation?.messages.find((one) => one.role === "tool" && one.callId === call.id);
    return found ? found.content : null;
  }

  /** Adds the result of a call. Once all calls of the answer have one, the model goes on. */
  giveResult(record, call, text) {
    if (this.abort || this.resultOf(call) !== null) return;
    this.add({ role: "tool", content: text, callId: call.id, name: call.name });
    this.views.get(record)?.finish();
    this.onChange(this.conversation);
    if (record.calls.every((one) => this.resultOf(one) !== null)) this.answer();
  }

  stop() {
    this.abort?.abort();
  }

  /** Before the page goes away: what has come of an answer so far is what there will be. */
  leave() {
    if (!this.writing) return;
    this.writing.stopped = true;
    this.onChange(this.conversation);
  }

  /** Puts a message's text in the input box; sending it begins a new version of the message. */
  edit(record) {
    if (this.abort) return;
    this.cancelEdit();
    this.editing = record;
    this.prompt.value = record.content;
    this.attachments.set(record.images ?? []);
    this.fitPrompt();
    this.refresh();
    this.prompt.focus();
  }

  cancelEdit() {
    if (!this.editing) return;
    this.editing = null;
    this.prompt.value = "";
    this.attachments.set([]);
    this.fitPrompt();
    this.refresh();
  }

  /** Asks for a new version of this answer; the earlier one is kept. */
  again(record) {
    if (this.abort) return;
    this.cancelEdit();
    const at = this.conversation.messages.indexOf(record);
    if (record.error && !record.content) cut(this.conversation, at); // nothing worth keeping
    else beginVersion(this.conversation, at);
    this.showMessages();
    this.answer();
  }

  chooseVersion(record, chosen) {
    if (this.abort) return;
    this.cancelEdit();
    chooseVersion(this.conversation, this.conversation.messages.indexOf(record), chosen);
    this.showMessages();
    this.onChange(this.conversation);
  }

  refresh() {
    const isEmpty = this.conversation.messages.length === 0;
    byId("greeting").hidden = !isEmpty;
    const isBusy = this.abort !== null;
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    byId("edit-note").hidden = this.editing === null;
    for (const [record, view] of this.views) view.root.classList.toggle("edited", record === this.editing);
    this.messages.setAttribute("aria-busy", String(isBusy));
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, window.innerHeight * 0.4)}px`;
  }
}
