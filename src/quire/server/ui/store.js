// The small things that the page stores in this browser: settings, theme, the model, the API key.
// They are sent only to this server, as part of requests. conversations.js has the conversations.

const CONVERSATIONS = "quire.conversations";
const UNREAD = "quire.conversations.unread";
const SETTINGS = "quire.settings";
const THEME = "quire.theme";
const PANEL = "quire.engine-panel";
const MODEL = "quire.model";
const KEY = "quire.api-key";

export const DEFAULT_SETTINGS = {
  system: "",
  mode: "chat",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  presence_penalty: "",
  max_tokens: "",
  seed: "",
  stop: "",
  reasoning: "",
  schema: "",
  tools: "",
  servers: "",
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
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const loadSettings = () => ({ ...DEFAULT_SETTINGS, ...read(SETTINGS, {}) });
export const saveSettings = (settings) => write(SETTINGS, settings);
export const loadTheme = () => read(THEME, "auto");
export const saveTheme = (theme) => write(THEME, theme);
export const loadPanel = () => read(PANEL, true);
export const savePanel = (isOpen) => write(PANEL, isOpen);
export const loadModel = () => String(read(MODEL, "") ?? "");
export const saveModel = (id) => write(MODEL, id);

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

/**
 * Passes the conversations that an earlier version stored here to `take`, and then removes them
 * here. `checked(value)` is null for one that cannot be read: it stays, by another name.
 */
export async function takeOldConversations(checked, take) {
  const found = read(CONVERSATIONS, []);
  if (!Array.isArray(found) || !found.length) return;
  const now = Date.now(); // they have no date, and the newest is first
  const good = found.map((one, index) => checked({ ...one, updated: now - index }));
  await take(good.filter(Boolean));
  const others = found.filter((_, index) => !good[index]);
  if (others.length && !write(UNREAD, others)) return;
  localStorage.removeItem(CONVERSATIONS);
}
