// Entry point: creates the parts of the page and their shared state.

import { modelFacts, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { SettingsDialog, askForKey, showRequest } from "./dialogs.js";
import { byId, el } from "./dom.js";
import { LiveView } from "./live.js";
import { ModelPicker } from "./models.js";
import { wireNearest } from "./nearest.js";
import { requestFor } from "./request.js";
import * as store from "./store.js";

const settings = store.loadSettings();
const conversations = new store.Conversations();
const live = new LiveView();
const picker = new ModelPicker((id) => {
  live.follow(id);
  showModel();
});

const dialog = new SettingsDialog(settings, store.saveSettings, changeKey);

const DEMO_SUGGESTIONS = [
  "What is 17 + 25?",
  "Tell me a short story about a lighthouse.",
  "Sort these words: pear, apple, quince, fig",
  "Who are you?",
];

const state = {
  model: () => byId("model").value,
  /** The request for an answer to these messages. */
  request: (messages) => requestFor(state.model(), settings, dialog.sampling.chat, messages),
};

const chat = new Chat(state, (conversation) => {
  conversations.touch(conversation);
  drawShelf();
  if (conversation === chat.conversation) setAddress("replaceState");
}, showRequest);

const ADDRESS = "#/c/";
const RETRY_MS = 3000;

/** The conversation that the page's address names, or a new one. */
function addressed() {
  const id = location.hash.startsWith(ADDRESS) ? location.hash.slice(ADDRESS.length) : "";
  return conversations.find(decodeURIComponent(id)) ?? conversations.create();
}

/** Gives the page the address of the open conversation; a new one has none before its first message. */
function setAddress(method) {
  const { id, title, messages } = chat.conversation;
  const address = messages.length ? ADDRESS + encodeURIComponent(id) : "";
  document.title = title && messages.length ? `${title} – Quire` : "Quire";
  if (address !== location.hash) history[method](null, "", location.pathname + location.search + address);
}

function drawShelf() {
  const shown = conversations.list.filter((one) => one.messages.length > 0);
  byId("conversations").replaceChildren(...shown.map((conversation) =>
    el("li", {},
      el("button", {
        type: "button", className: "conversation",
        "aria-current": conversation === chat.conversation ? "true" : null,
        onclick: () => show(conversation),
      }, conversation.title || "…"),
      el("button", {
        type: "button", className: "remove", "aria-label": `Delete “${conversation.title}”`,
        onclick: () => forget(conversation),
      }, "×"))));
  byId("forget").hidden = shown.length === 0;
}

function show(conversation, method = "pushState") {
  chat.open(conversation);
  setAddress(method);
  drawShelf();
  openShelf(false);
  setView("chat");
  if (matchMedia("(hover: hover)").matches) byId("prompt").focus();
}

function forget(conversation) {
  conversations.remove(conversation.id);
  if (conversation === chat.conversation) show(conversations.create());
  else drawShelf();
}

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

/** Adapts the page to the chosen model; tries again until the server knows it. */
async function showModel() {
  try {
    if (!picker.models.length) await picker.start();
    const { id, maxLength } = picker.chosen();
    const facts = await modelFacts(id);
    if (id !== state.model()) return; // another one was chosen in the meantime
    dialog.sampling = facts.sampling;
    chat.attachments.allow(facts.takesImages);
    document.body.dataset.kind = facts.isRanker ? "nearest" : "chat";
    showSuggestions(facts.isDemo ? DEMO_SUGGESTIONS : []);
    const room = maxLength ? `, up to ${maxLength.toLocaleString()} tokens` : "";
    byId("greeting-model").textContent = `${id}${room}. Everything stays on this server.`;
  } catch (error) {
    byId("greeting-model").textContent = error.message;
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    return showModel();
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

function start() {
  onKeyNeeded(askForKey);
  byId("new-chat").addEventListener("click", () => show(conversations.create()));
  byId("forget").addEventListener("click", () => {
    if (!confirm("Delete all conversations from this browser?")) return;
    conversations.clear();
    show(conversations.create());
  });
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
  addEventListener("popstate", () => show(addressed(), "replaceState"));
  addEventListener("pagehide", () => chat.leave());
  store.onOtherTab(() => {
    conversations.reload(chat.conversation);
    drawShelf();
  });
  show(addressed(), "replaceState");
  wireNearest(state.model);
  showModel().then(() => live.run());
}

start();
