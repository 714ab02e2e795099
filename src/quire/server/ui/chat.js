// The conversation: sends, streams, stops, and shows. Owns the message list and the composer.

import { streamAnswer } from "./api.js";
import { byId, el } from "./dom.js";
import { MessageView } from "./message.js";

const SUGGESTIONS = [
  "What is 17 + 25?",
  "Tell me a short story about a lighthouse.",
  "Sort these words: pear, apple, quince, fig",
  "Who are you?",
];

/** Shows one conversation; `app.js` selects it. */
export class Chat {
  /**
   * `state` gives `model()` and `request(messages)`; `onChange` is called after every finished
   * change, `showRequest` with the request of an answer.
   */
  constructor(state, onChange, showRequest) {
    this.state = state;
    this.onChange = onChange;
    this.showRequest = showRequest;
    this.conversation = null;
    this.abort = null;
    this.views = new Map();
    this.sent = new WeakMap();
    this.log = byId("log");
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
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.abort && !document.querySelector("dialog[open]")) this.stop();
    });
    byId("to-end").addEventListener("click", () => this.scrollToEnd(true));
    this.log.addEventListener("scroll", () => this.noteScroll(), { passive: true });
    this.messages.addEventListener("grown", () => this.scrollToEnd(false));
    new ResizeObserver(() => this.scrollToEnd(false)).observe(this.log);
    byId("suggestions").append(...SUGGESTIONS.map((text) =>
      el("button", { type: "button", className: "chip", onclick: () => this.send(text) }, text)));
    this.isAtEnd = true;
  }

  /** Shows a conversation; stops an answer that is being generated in another one. */
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.views.clear();
    this.messages.replaceChildren(...conversation.messages.map((record) => this.viewOf(record).root));
    this.refresh();
    this.scrollToEnd(true);
  }

  viewOf(record) {
    const view = new MessageView(record, this.actionsOf(record), {
      resultOf: (call) => this.resultOf(call),
      onResult: (call, text) => this.giveResult(record, call, text),
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
    if (this.abort || !text.trim() || !this.state.model()) return;
    this.prompt.value = "";
    this.fitPrompt();
    this.add({ role: "user", content: text });
    this.scrollToEnd(true);
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
    this.refresh();
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
    view.finish();
    this.refresh();
    this.scrollToEnd(false);
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

  /** Moves a message back to the input box and removes the later ones. */
  edit(record) {
    if (this.abort) return;
    this.cutFrom(record);
    this.prompt.value = record.content;
    this.fitPrompt();
    this.prompt.focus();
  }

  /** Replaces this answer and all later messages by a new answer. */
  again(record) {
    if (this.abort) return;
    this.cutFrom(record);
    this.answer();
  }

  cutFrom(record) {
    const at = this.conversation.messages.indexOf(record);
    for (const gone of this.conversation.messages.splice(at)) this.views.get(gone)?.root.remove();
    this.refresh();
  }

  refresh() {
    const isEmpty = this.conversation.messages.length === 0;
    byId("greeting").hidden = !isEmpty;
    const isBusy = this.abort !== null;
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    this.messages.setAttribute("aria-busy", String(isBusy));
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, window.innerHeight * 0.4)}px`;
  }

  noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < 60;
    byId("to-end").hidden = this.isAtEnd;
  }

  scrollToEnd(isForced) {
    if (!isForced && !this.isAtEnd) return;
    this.isAtEnd = true;
    this.log.scrollTop = this.log.scrollHeight;
  }
}

function take(record, piece, clock) {
  const now = performance.now();
  if (piece.text || piece.reasoning || piece.calls.length) {
    clock.first ||= now;
    clock.last = now;
    clock.pieces += 1;
  }
  record.content += piece.text;
  record.reasoning += piece.reasoning;
  for (const delta of piece.calls) {
    record.calls[delta.index] ??= { id: delta.id, name: delta.function.name, arguments: "" };
    record.calls[delta.index].arguments += delta.function.arguments ?? "";
  }
  record.finishReason = piece.finishReason ?? record.finishReason;
  if (piece.usage) record.usage = piece.usage;
}

/** Speeds measured in the browser; token counts from the server. */
function measure(record, clock) {
  if (!clock.first) return;
  const usage = record.usage ?? {};
  const completion = usage.completion_tokens ?? clock.pieces;
  const seconds = (clock.last - clock.first) / 1000;
  record.stats = {
    ttft: (clock.first - clock.sent) / 1000,
    rate: completion > 1 && seconds > 0.02 ? (completion - 1) / seconds : 0,
    completion,
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
  delete record.usage;
}

function explain(error) {
  if (error.status === 503) {
    const wait = error.retryAfter ? ` Try again in ${Math.ceil(error.retryAfter)} s.` : "";
    return `The server is busy. ${error.message}${wait}`;
  }
  if (error.status === 401) return "The server did not accept the API key.";
  if (/chat template/i.test(error.message)) {
    return `${error.message} In the settings, choose "Plain text, continued".`;
  }
  return error.message;
}
