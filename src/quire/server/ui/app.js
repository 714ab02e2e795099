// Entry point: creates the parts of the page and their shared state.

import { listModels, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { SettingsDialog, askForKey, showRequest } from "./dialogs.js";
import { byId, el } from "./dom.js";
import { LiveView } from "./live.js";
import { requestFor } from "./request.js";
import * as store from "./store.js";

const settings = store.loadSettings();
const conversations = new store.Conversations();
const live = new LiveView();

const state = {
  model: () => byId("model").value,
  /** The request for an answer to these messages. */
  request: (messages) => requestFor(byId("model").value, settings, messages),
};

const chat = new Chat(state, (conversation) => {
  conversations.touch(conversation);
  drawShelf();
}, showRequest);

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

function show(conversation) {
  chat.open(conversation);
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

async function loadModels() {
  try {
    const models = await listModels();
    byId("model").replaceChildren(...models.map(({ id }) => el("option", { value: id }, id)));
    byId("model").disabled = models.length < 2;
    const { id, maxLength } = models[0];
    const room = maxLength ? `, up to ${maxLength.toLocaleString()} tokens` : "";
    byId("greeting-model").textContent = `${id}${room}. Everything stays on this server.`;
  } catch (error) {
    byId("greeting-model").textContent = error.message;
    setTimeout(loadModels, 3000);
  }
}

function start() {
  onKeyNeeded(askForKey);
  new SettingsDialog(settings, store.saveSettings, async () => {
    const answer = await askForKey();
    if (answer) {
      store.saveKey(answer.key, answer.keep);
      location.reload();
    }
  });
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
  show(conversations.create());
  loadModels().then(() => live.run());
}

start();
