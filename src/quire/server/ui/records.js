// Conversations as records: their form, their check, and their title. Pure functions.
//
// A conversation is {id, title, messages, forks, model, updated}; versions.js describes `forks`.
// Every message has a unique `id`. An answer that is being written has `running: true`.

const ROLES = ["user", "assistant", "tool"];
const MAX_DEPTH = 200; // of versions within versions
const IMAGE = /^data:image\/(png|jpeg|webp|gif|bmp);base64,[A-Za-z0-9+/=]*$/;
const SOUND = /^data:audio\/[\w.+-]{1,60}(;[\w.=+-]{1,60})?;base64,[A-Za-z0-9+/=]*$/;
const isText = (value) => typeof value === "string";

// crypto.randomUUID is for secure contexts only. The id of a response must be hard to guess.
/** A new random id of 32 hexadecimal digits. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A conversation without messages. A temporary one is never stored. */
export const newConversation = (isTemporary = false) =>
  ({ id: newId(), title: "", messages: [], forks: [], ...(isTemporary ? { temporary: true } : {}) });

/** What the list shows of a conversation. */
export const entryOf = ({ id, title, updated, model }) => ({ id, title, updated, model });

/** The beginning of the first message of the user. */
export function titleOf(conversation) {
  const first = conversation.messages.find((one) => one.role === "user" && one.content);
  const text = (first?.content ?? "").slice(0, 400).replace(/\s+/g, " ").trim();
  return text.length > 60 ? `${text.slice(0, 57)}…` : text || "Untitled";
}

/** All messages, those of versions that are not shown too. */
export function* allMessages({ messages, forks }) {
  yield* messages;
  for (const fork of forks) {
    for (const version of fork.versions) if (version) yield* allMessages(version);
  }
}

/** The message with this id in any version, or undefined. */
export function findMessage(conversation, id) {
  for (const message of allMessages(conversation)) if (message.id === id) return message;
  return undefined;
}

/** A conversation from an unchecked value: known fields of the right form alone; null if it has none. */
export function checkedConversation(value) {
  if (!isText(value?.id) || !value.id) return null;
  const part = checkedPart(value, 0);
  if (!part?.messages.length) return null;
  const conversation = { id: value.id.slice(0, 100), title: "", ...part, updated: 0 };
  if (isText(value.title)) conversation.title = value.title.slice(0, 300);
  if (isText(value.model)) conversation.model = value.model.slice(0, 1000);
  if (Number.isFinite(value.updated)) conversation.updated = value.updated;
  conversation.title ||= titleOf(conversation);
  return conversation;
}

function checkedPart(value, depth) {
  if (depth > MAX_DEPTH || !Array.isArray(value?.messages)) return null;
  const messages = value.messages.map(checkedMessage);
  if (messages.includes(null)) return null;
  const forks = Array.isArray(value.forks) ? value.forks : [];
  return { messages, forks: forks.map((one) => checkedFork(one, depth)).filter(Boolean) };
}

function checkedFork(fork, depth) {
  const { at, chosen } = fork ?? {};
  if (!Number.isInteger(at) || at < 0 || !Array.isArray(fork.versions)) return null;
  if (!Number.isInteger(chosen) || fork.versions[chosen] !== null) return null;
  const versions = fork.versions.map((one, index) =>
    index === chosen ? null : checkedPart(one, depth + 1));
  return versions.every((one, index) => one || index === chosen) ? { at, chosen, versions } : null;
}

function checkedMessage(value) {
  if (!ROLES.includes(value?.role) || !isText(value.content)) return null;
  const message = { id: isText(value.id) && value.id ? value.id.slice(0, 100) : newId(), role: value.role, content: value.content };
  for (const name of ["reasoning", "model", "error", "finishReason", "callId", "name"]) {
    if (isText(value[name])) message[name] = value[name];
  }
  if (value.stopped === true || value.running === true) message.stopped = true;
  if (Number.isInteger(value.numImages)) message.numImages = value.numImages;
  const lists = {
    images: listOf(value.images, (one) => isText(one) && IMAGE.test(one)),
    sounds: listOf(value.sounds, (one) => isText(one?.name) && isText(one.url) && SOUND.test(one.url), ["name", "url"]),
    attachments: listOf(value.attachments, isAttachment, ["name", "type", "text", "data"]),
    calls: listOf(value.calls, isCall, ["id", "name", "arguments"]),
  };
  for (const [name, list] of Object.entries(lists)) if (list.length) message[name] = list;
  if (message.role === "assistant") Object.assign(message, { calls: message.calls ?? [], ...statsOf(value.stats) });
  return message;
}

function listOf(value, isGood, names = null) {
  const good = Array.isArray(value) ? value.filter(isGood) : [];
  if (!names) return good;
  return good.map((one) => Object.fromEntries(names.filter((name) => isText(one[name])).map((name) => [name, one[name]])));
}

const isAttachment = (one) => isText(one?.name) && isText(one.type) && (isText(one.text) || isText(one.data));
const isCall = (one) => isText(one?.id) && isText(one.name) && isText(one.arguments);

function statsOf(stats) {
  const names = ["ttft", "rate", "completion", "prompt", "cached"].filter((name) => Number.isFinite(stats?.[name]));
  return names.length ? { stats: Object.fromEntries(names.map((name) => [name, stats[name]])) } : {};
}
