// The data that the page stores in this browser: conversations, settings, theme, API key.
// It is sent only to this server, as part of requests.

const CONVERSATIONS = "quire.conversations";
const SETTINGS = "quire.settings";
const THEME = "quire.theme";
const PANEL = "quire.engine-panel";
const KEY = "quire.api-key";
const MAX_CONVERSATIONS = 200;

export const DEFAULT_SETTINGS = {
  system: "",
  mode: "chat",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max_tokens: "",
  seed: "",
  stop: "",
  reasoning: "",
  schema: "",
  tools: "",
};

function read(key, fallback) {
  try {
    const text = localStorage.getItem(key);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback; // private mode, or a value another version wrote
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value, withoutImages));
    return true;
  } catch {
    return false;
  }
}

// Images would soon fill the storage: a conversation has them until the page is left.
const withoutImages = (key, value) => (key === "images" ? undefined : value);

export const loadSettings = () => ({ ...DEFAULT_SETTINGS, ...read(SETTINGS, {}) });
export const saveSettings = (settings) => write(SETTINGS, settings);
export const loadTheme = () => read(THEME, "auto");
export const saveTheme = (theme) => write(THEME, theme);
export const loadPanel = () => read(PANEL, true);
export const savePanel = (isOpen) => write(PANEL, isOpen);

/** The API key: for this tab, or permanently if the user chose it. */
export function loadKey() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key, isForGood) {
  try {
    sessionStorage.setItem(KEY, key);
    if (isForGood) localStorage.setItem(KEY, key);
    else localStorage.removeItem(KEY);
  } catch {
    // Without storage the key lives as long as the page: api.js holds it too.
  }
}

/** All conversations, newest first. The one list that the page shows and saves. */
export class Conversations {
  constructor() {
    this.list = stored();
  }

  /** The conversation with this id, or undefined. */
  find(id) {
    return this.list.find((conversation) => conversation.id === id);
  }

  /** Takes over what another tab has stored, but not of the conversation that is open here. */
  reload(open) {
    this.list = stored().map((one) => (one.id === open.id ? open : one));
  }

  create() {
    const id = crypto.randomUUID?.() ?? fallbackId();
    const conversation = { id, title: "", messages: [], forks: [] };
    this.list.unshift(conversation);
    return conversation;
  }

  remove(id) {
    this.list = this.list.filter((conversation) => conversation.id !== id);
    this.save();
  }

  clear() {
    this.list = [];
    this.save();
  }

  touch(conversation) {
    this.list = [conversation, ...this.list.filter((other) => other !== conversation)];
    if (!conversation.title) conversation.title = titleOf(conversation);
    this.save();
  }

  /** Saves; if the storage is full, the oldest conversations are removed. */
  save() {
    let kept = this.list.filter((one) => one.messages.length > 0).slice(0, MAX_CONVERSATIONS);
    while (!write(CONVERSATIONS, kept) && kept.length > 1) kept = kept.slice(0, -1);
  }
}

/** Calls `onChange` when another tab has stored conversations. */
export function onOtherTab(onChange) {
  addEventListener("storage", (event) => {
    if (event.key === CONVERSATIONS || event.key === null) onChange();
  });
}

function stored() {
  const found = read(CONVERSATIONS, []);
  if (!Array.isArray(found)) return [];
  return found.filter(isConversation).map((one) => ({ ...one, forks: one.forks ?? [] }));
}

function isConversation(value) {
  return (
    value !== null && typeof value === "object" && typeof value.id === "string" &&
    Array.isArray(value.messages) && Array.isArray(value.forks ?? []) &&
    value.messages.every((m) => typeof m?.content === "string" && typeof m?.role === "string")
  );
}

function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user" && message.content);
  const text = (first?.content ?? "").replace(/\s+/g, " ").trim();
  return text.length > 60 ? `${text.slice(0, 57)}…` : text;
}

// crypto.randomUUID is for secure contexts only; this id has to be unique in one browser.
const fallbackId = () => `c${Date.now().toString(36)}${Math.random().toString(36).slice(2, 10)}`;
