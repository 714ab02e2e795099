// Entry point: creates the parts of the page and their shared state.

import { onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { Conversations } from "./conversations.js";
import { SettingsDialog, askForKey, showRequest } from "./dialogs.js";
import { byId, el } from "./dom.js";
import { LiveView } from "./live.js";
import { ModelPicker } from "./models.js";
import { wireNearest } from "./nearest.js";
import { keepStorage, showNotice, storageWarning } from "./notices.js";
import { newConversation } from "./records.js";
import { requestFor } from "./request.js";
import { asResponse } from "./responses.js";
import { Runs } from "./runs.js";
import { Shelf } from "./shelf.js";
import { wireSpeech } from "./speech.js";
import * as store from "./store.js";
import { ToolServers } from "./tool_servers.js";

const settings = store.loadSettings();
const live = new LiveView(showModel);
const picker = new ModelPicker((id) => {
  live.follow(id);
  if (chat.conversation) showModelNote();
});
byId("model").addEventListener("change", ({ target }) => store.saveModel(target.value));

const servers = new ToolServers(settings, store.saveSettings, () => chat.redrawCalls());
const dialog = new SettingsDialog(settings, store.saveSettings, changeKey, servers);
const trouble = { storage: "", full: "" };

const conversations = new Conversations({
  onChange: (id) => showChange(id),
  onAnswer: (answer) => {
    chat.grow(answer);
    runs.follow(answer.id);
    shelf.drawSoon();
  },
  onStop: (id) => runs.stop(id, false),
  onTrouble: (error) => {
    trouble.storage = error ? `This browser does not store conversations now (${error.message || error.name}). ` +
      "They end with this tab: export what you want to keep." : "";
    showTrouble();
  },
});
const runs = new Runs(conversations, (answer, note) => chat.grow(answer, note));

const DEMO_SUGGESTIONS = [
  "What is 17 + 25?",
  "Tell me a short story about a lighthouse.",
  "Sort these words: pear, apple, quince, fig",
  "Who are you?",
];

const state = {
  model: () => byId("model").value,
  /** The request for an answer to these messages, with this id of the response. */
  request: (messages, id, conversation = null, continues = false) => {
    const chatRequest = requestFor(state.model(), settings, dialog.sampling.chat, messages, servers.tools());
    if (chatRequest.path === "v1/completions") {
      const stream_options = { include_usage: true };
      return { ...chatRequest, body: { ...chatRequest.body, stream: true, stream_options } };
    }
    const request = asResponse(chatRequest, conversation?.temporary ? "temporary" : "background", continues);
    if (request.body.background) request.body.request_id = id;
    return request;
  },
};

const chat = new Chat(state, conversations, runs, servers, { showRequest, onShown: () => {
  setAddress("replaceState");
  showModelNote();
} });
const shelf = new Shelf(conversations, runs, {
  openOne: async (id) => {
    const conversation = await conversations.load(id);
    if (conversation) show(conversation);
  },
  opened: () => chat.conversation?.id,
  onRemoved: () => show(newConversation()),
});

const ADDRESS = "#/c/";

/** The conversation that the page's address names, or a new one. */
async function addressed() {
  const id = location.hash.startsWith(ADDRESS) ? location.hash.slice(ADDRESS.length) : "";
  return (id && (await conversations.load(decoded(id)))) || newConversation();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Gives the page the address of the open conversation; a new or temporary one has none. */
function setAddress(method) {
  const { id, title, messages, temporary } = chat.conversation;
  const isStored = messages.length > 0 && !temporary;
  const address = isStored ? ADDRESS + encodeURIComponent(id) : "";
  document.title = title && messages.length ? `${title} – Quire` : "Quire";
  if (address !== location.hash) history[method](null, "", location.pathname + location.search + address);
}

function show(conversation, method = "pushState") {
  leaveTemporary();
  chat.open(conversation);
  document.body.classList.toggle("temporary", Boolean(conversation.temporary));
  byId("temporary-note").hidden = !conversation.temporary;
  if (conversation.model) picker.choose(conversation.model);
  else if (!conversation.messages.length) picker.choose(store.loadModel());
  showModelNote();
  setAddress(method);
  shelf.draw();
  openShelf(false);
  setView("chat");
  if (matchMedia("(hover: hover)").matches) byId("prompt").focus();
}

function leaveTemporary() {
  if (!chat.conversation?.temporary) return;
  chat.stop();
  conversations.memory.delete(chat.conversation.id);
}

/** Shows a conversation again that was changed, here or in another tab (null: many were). */
async function showChange(id) {
  shelf.drawSoon();
  const opened = chat.conversation;
  for (const answer of conversations.answers.keys()) runs.follow(answer);
  if (!opened?.messages.length || (id !== null && id !== opened.id)) return;
  const wasRunning = chat.running?.id;
  const changed = (await conversations.find(opened.id)) ?? opened; // it stays in view if it is deleted
  if (chat.conversation?.id !== opened.id || chat.isSending) return;
  chat.update(changed);
  const ended = wasRunning && changed.messages.find((one) => one.id === wasRunning && !one.running);
  if (ended) chat.announce(ended);
  if (ended) checkRoom();
}

async function checkRoom() {
  trouble.full = await storageWarning();
  showTrouble();
}

const showTrouble = () => showNotice([trouble.storage, trouble.full].filter(Boolean).join(" "));

function openShelf(isOpen) {
  document.body.classList.toggle("shelf-open", isOpen);
  byId("shade").hidden = !isOpen;
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

function setView(view) {
  document.body.dataset.view = view;
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.setAttribute("aria-pressed", String(tab.dataset.view === view));
  }
  live.redraw();
}

function setPanel(isOpen) {
  document.body.classList.toggle("panel-closed", !isOpen);
  byId("panel").setAttribute("aria-pressed", String(isOpen));
  store.savePanel(isOpen);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const names = { auto: "as the system", light: "light", dark: "dark" };
  byId("theme").title = `Theme: ${names[theme]}`;
  byId("theme").setAttribute("aria-label", `Theme: ${names[theme]}`);
  store.saveTheme(theme);
  live.redraw();
}

function nextTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = isDark ? ["auto", "light", "dark"] : ["auto", "dark", "light"];
  setTheme(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % 3]);
}

/** Adapts the page to the models that the server reports, and to the facts about the chosen one. */
function showModel(snapshot) {
  if (snapshot.mcp) servers.take(snapshot.mcp);
  if (snapshot.models) picker.show(snapshot.models, chat.conversation?.model ?? store.loadModel());
  const chosen = picker.chosen();
  const { is_demo: isDemo, takes_images: images, takes_audio: sounds, transcribes, scoring, sampling } = snapshot;
  const shown = JSON.stringify([chosen, isDemo, images, sounds, transcribes, scoring, sampling]);
  if (!chosen || shown === showModel.shown) return;
  showModel.shown = shown;
  dialog.sampling = sampling ?? { model: {}, chat: {} };
  chat.attachments.allow({ images: images === true, sounds: sounds === true }, chosen.id);
  document.body.dataset.kind = transcribes ? "speech" : scoring ? "nearest" : "chat";
  showSuggestions(isDemo ? DEMO_SUGGESTIONS : []);
  const room = chosen.maxLength ? `, up to ${chosen.maxLength.toLocaleString()} tokens` : "";
  byId("greeting-model").textContent = `${picker.nameOf(chosen.id)}${room}. Everything stays on this server.`;
}

/** Says if another model than before answers in this conversation. */
function showModelNote() {
  const { model } = chat.conversation;
  const chosen = state.model();
  const isOther = model && chosen && model !== chosen;
  byId("model-note").hidden = !isOther;
  if (isOther) {
    const why = picker.has(model) ? "" : `${picker.nameOf(model)} is not served here. `;
    byId("model-note").textContent = `${why}${picker.nameOf(chosen)} will answer.`;
  }
}

function showSuggestions(texts) {
  byId("suggestions").replaceChildren(...texts.map((text) =>
    el("button", { type: "button", className: "chip", onclick: () => chat.send(text) }, text)));
}

async function changeKey() {
  const answer = await askForKey();
  if (!answer) return;
  store.saveKey(answer.key, answer.keep);
  location.reload();
}

function wire() {
  onKeyNeeded(askForKey);
  byId("new-chat").addEventListener("click", () => show(newConversation()));
  byId("new-temporary").addEventListener("click", () => show(newConversation(true)));
  byId("menu").addEventListener("click", () => openShelf(!document.body.classList.contains("shelf-open")));
  byId("shade").addEventListener("click", () => openShelf(false));
  byId("theme").addEventListener("click", nextTheme);
  byId("panel").addEventListener("click", () => setPanel(document.body.classList.contains("panel-closed")));
  for (const tab of document.querySelectorAll(".tabs button")) {
    tab.addEventListener("click", () => setView(tab.dataset.view));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.redraw());
  setTheme(store.loadTheme());
  setPanel(store.loadPanel());
  addEventListener("popstate", async () => show(await addressed(), "replaceState"));
  addEventListener("pageshow", (event) => event.persisted && conversations.refresh());
  document.addEventListener("visibilitychange", () => document.hidden || conversations.refresh());
  addEventListener("beforeunload", (event) => {
    const isUnsaved = [...conversations.memory.values()].some((one) => !one.temporary);
    if (isUnsaved) event.preventDefault();
  });
  wireNearest(state.model);
  wireSpeech(state.model);
}

async function start() {
  wire();
  live.run();
  await conversations.start();
  show(await addressed(), "replaceState");
  document.body.dataset.isStarted = "";
  keepStorage();
  checkRoom();
}

start();
