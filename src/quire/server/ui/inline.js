// Markdown inside a line to DOM nodes: emphasis, code, links, formulas, footnotes, and of HTML its
// character references and `<br>`. As in `markdown.js`, no text becomes HTML.

import { el } from "./dom.js";
import { reference } from "./entities.js";
import { chemistry, formulaSpan } from "./math.js";

/** Deepest nesting that is read as Markdown. */
export const MAX_DEPTH = 6;

const WRAPS = [
  ["***", "strong"], ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"],
];
const URL_START = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const LINK = /!?\[([^\[\]\n]{0,400})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\))?)>?(?:\s+"[^"\n]{0,300}")?\s*\)/y;

const BREAK = /<br[ \t]*\/?>/iy;
const ADDRESS = /<(https?:\/\/[^\s<>"'`]{1,2000})>/y;
// A number, or a word of four letters: `[^a-z]` and `[^abc]` are regular expressions.
const NOTE = /\[\^(\d{1,4}|[A-Za-z][\w-]{0,3}\w{3,28})\]/y;

/** The nodes of a text without blocks. */
export function inline(text, depth) {
  const nodes = [];
  const searched = {};
  let plain = "";
  const flush = () => {
    for (const node of plain ? withBreaks(plain) : []) nodes.push(node);
    plain = "";
  };
  let at = 0;
  let character;
  while (at < text.length) {
    const found = span(text, at, depth, searched);
    if (found) {
      flush();
      nodes.push(found.node);
      at = found.end;
    } else if (text[at] === "&" && (character = reference(text, at))) {
      plain += character.text === "\n" ? " " : character.text;
      at = character.end;
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  flush();
  return nodes;
}

/**
 * The construct that begins exactly here, or null. `searched`: where the search for the end of each
 * mark goes on, so that no place is looked at for every mark before it.
 */
function span(text, at, depth, searched) {
  const char = text[at];
  if (char === "`") return codeSpan(text, at);
  if (char === "$" || (char === "\\" && "([".includes(text[at + 1] ?? " "))) return formulaSpan(text, at);
  if (char === "\\" && text.startsWith("\\ce{", at)) return chemistry(text, at);
  if (char === "<") return breakOrAddress(text, at);
  if (char === "[" && text[at + 1] === "^") return note(text, at, depth);
  if (char === "[" || (char === "!" && text[at + 1] === "[")) return link(text, at, depth);
  if (char === "h" && (at === 0 || !/\w/.test(text[at - 1]))) return bareLink(text, at);
  if ("*_~".includes(char) && depth < MAX_DEPTH) return emphasis(text, at, depth, searched);
  return null;
}

function codeSpan(text, at) {
  let width = 1;
  while (text[at + width] === "`") width += 1;
  const ticks = "`".repeat(width);
  const end = text.indexOf(ticks, at + width);
  if (end < 0) return { node: document.createTextNode(ticks), end: at + width };
  const body = text.slice(at + width, end).replace(/^ (.+) $/, "$1");
  return { node: el("code", {}, body), end: end + width };
}

function breakOrAddress(text, at) {
  BREAK.lastIndex = ADDRESS.lastIndex = at;
  if (BREAK.test(text)) return { node: el("br"), end: BREAK.lastIndex };
  const match = ADDRESS.exec(text);
  if (!match || !isSafe(match[1])) return null;
  return { node: anchor(match[1], [match[1]]), end: ADDRESS.lastIndex };
}

function note(text, at, depth) {
  NOTE.lastIndex = at;
  const match = NOTE.exec(text);
  return match ? { node: noteMark(match[1]), end: NOTE.lastIndex } : link(text, at, depth);
}

/** The mark of a footnote. */
export const noteMark = (label) => el("sup", { className: "note-mark" }, label);

function link(text, at, depth) {
  LINK.lastIndex = at;
  const match = LINK.exec(text);
  if (!match || !isSafe(match[2])) return null;
  const label = match[1] || match[2];
  const children = depth < MAX_DEPTH ? inline(label, MAX_DEPTH) : [label];
  return { node: anchor(match[2], children), end: LINK.lastIndex };
}

function bareLink(text, at) {
  URL_START.lastIndex = at;
  const match = URL_START.exec(text);
  if (!match) return null;
  const url = withoutEnd(match[0], ".,;:!?)]}*_~");
  if (url.length < 10 || !isSafe(url)) return null;
  return { node: anchor(url, [url]), end: at + url.length };
}

function isSafe(url) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(url).protocol);
  } catch {
    return false; // relative links have no base here
  }
}

const anchor = (href, children) =>
  el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);

function emphasis(text, at, depth, searched) {
  for (const [mark, tag] of WRAPS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    if (!text[from] || /\s/.test(text[from])) continue;
    if (mark[0] === "_" && at > 0 && /\w/.test(text[at - 1])) continue;
    const end = closing(text, from, mark, searched);
    if (end < 0) continue;
    const inner = inline(text.slice(from, end), depth + 1);
    const node = el(tag, {}, inner);
    return { node: mark === "***" ? el("em", {}, node) : node, end: end + mark.length };
  }
  return null;
}

function closing(text, from, mark, searched) {
  const limit = Math.min(text.length, from + 4000);
  let at = text.indexOf(mark, Math.max(from, searched[mark] ?? 0));
  for (; at >= 0 && at < limit; at = text.indexOf(mark, at + 1)) {
    const isSpaced = /\s/.test(text[at - 1]) || at === from;
    const isLonger = mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark);
    const isInWord = mark[0] === "_" && /\w/.test(text[at + mark.length] ?? "");
    if (!isSpaced && !isLonger && !isInWord && text[at - 1] !== "\\") return at;
  }
  searched[mark] = at < 0 ? text.length : at;
  return -1;
}

// In chats a line break in the source is a line break in the output.
function withBreaks(text) {
  const nodes = [];
  text.split("\n").forEach((line, i, lines) => {
    if (i > 0) nodes.push(el("br"));
    const shown = i < lines.length - 1 ? withoutEnd(line, " ") : line;
    if (shown) nodes.push(document.createTextNode(shown));
  });
  return nodes;
}

/** The text without these characters at its end. */
export function withoutEnd(text, chars) {
  let end = text.length;
  while (end > 0 && chars.includes(text[end - 1])) end -= 1;
  return text.slice(0, end);
}
