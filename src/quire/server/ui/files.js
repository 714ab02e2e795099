// Conversations as files: JSON, which can be imported again, and Markdown.

import { el } from "./dom.js";
import { checkedConversation, newId } from "./records.js";
import { splitThinking } from "./thinking.js";

const FORM = "quire.conversations";
const MAX_BYTES = 512 * 2 ** 20;
const MAX_COUNT = 100_000;

/** Conversations as a Blob of JSON. Each is written by itself: one text of all may be too long. */
export function asJson(conversations) {
  const pieces = conversations.flatMap((one, index) => [index ? ",\n" : "", JSON.stringify(one)]);
  return new Blob([`{"form": "${FORM}", "version": 1, "conversations": [\n`, ...pieces, "\n]}\n"],
    { type: "application/json" });
}

/** A conversation as a Blob of Markdown: the version that is shown, without reasoning. */
export function asMarkdown({ title, messages }) {
  const parts = messages.map((message) => {
    const { role, content, images = [], sounds = [], attachments = [], calls = [], name, model } = message;
    if (role === "tool") return `## Result of ${name}\n\n${fenced(content)}`;
    const media = [...images.map(() => "(an image)"), ...sounds.map((one) => `(the sound ${one.name})`)];
    const files = [...media, ...attachments.map((one) => `(the file ${one.name})`)];
    const called = calls.map((call) => `Calls ${call.name}:\n\n${fenced(call.arguments, "json")}`);
    const text = role === "user" ? content : splitThinking(content).answer;
    const head = role === "user" ? "You" : `Answer${model ? ` of ${model}` : ""}`;
    return [`## ${head}`, ...files, text, ...called].filter(Boolean).join("\n\n");
  });
  return new Blob([[`# ${title.replace(/\s+/g, " ")}`, ...parts].join("\n\n"), "\n"], { type: "text/markdown" });
}

/** A block of code with a fence that is longer than any in the text. */
function fenced(text, language = "") {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** Lets the browser save a Blob. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A title as the name of a file. */
export function fileName(title, ending) {
  const plain = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60);
  return `${plain || "conversation"}.${ending}`;
}

/** The conversations in a file, {conversations, numRefused}. Throws what is wrong with the file. */
export async function readFile(file) {
  if (file.size > MAX_BYTES) throw new Error(`The file is larger than ${MAX_BYTES / 2 ** 20} MiB.`);
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`The file is not JSON: ${error.message.slice(0, 200)}`);
  }
  const found = Array.isArray(value) ? value : value?.conversations;
  if (!Array.isArray(found)) throw new Error('The file has no conversations: {"conversations": […]}, as an export has them.');
  if (found.length > MAX_COUNT) throw new Error(`The file has more than ${MAX_COUNT} conversations.`);
  const conversations = found.map(checkedConversation).filter(Boolean);
  return { conversations, numRefused: found.length - conversations.length };
}

/**
 * Those that are not here yet. One that is here with other messages gets a new id, so that both
 * stay. `load(id)` gives the one that is here.
 */
export async function newOnes(conversations, load) {
  const added = new Map();
  const isSame = (one, other) => JSON.stringify(one.messages) === JSON.stringify(checkedConversation(other)?.messages);
  for (const one of conversations) {
    const other = added.get(one.id) ?? (await load(one.id));
    if (other && isSame(one, other)) continue;
    const id = other ? newId() : one.id;
    added.set(id, { ...one, id });
  }
  return [...added.values()];
}
