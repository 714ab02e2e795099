// Markdown to DOM nodes. It never builds HTML text: every character of the source ends up in
// a text node, so nothing that a model writes can become an element, an attribute or a script.
// Images become links: loading one would send a request to another host.

import { el, copyWithFeedback } from "./dom.js";
import { highlight } from "./highlight.js";

const MAX_DEPTH = 6;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([\w+#.-]{0,32})[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,9})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** A document fragment for a Markdown text; the text is not trusted. */
export function renderMarkdown(source) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(source.replace(/\r\n?/g, "\n").split("\n"), 0));
  return fragment;
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [node, next] = block(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
}

function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    // The page has its own h1 and h2: an answer's headings go below them.
    const level = Math.min(6, heading[1].length + 2);
    return [el(`h${level}`, {}, ...inline(heading[2], 0)), at + 1];
  }
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (/^ {0,3}>/.test(line) && depth < MAX_DEPTH) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < MAX_DEPTH) return list(lines, at, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
    return table(lines, at);
  }
  return paragraph(lines, at);
}

function code(lines, at, fence) {
  const close = new RegExp(`^ {0,3}${fence[2][0] === "`" ? "`" : "~"}{${fence[2].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  const language = fence[3];
  const copy = el("button", { type: "button", className: "copy" }, "Copy");
  copy.addEventListener("click", () => copyWithFeedback(copy, text));
  const node = el(
    "div",
    { className: "code" },
    el("div", { className: "code-head" }, el("span", {}, language || "text"), copy),
    el("pre", { tabIndex: 0 }, el("code", {}, ...highlight(text, language))),
  );
  return [node, end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [el("blockquote", {}, ...blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first[2]);
  const start = isOrdered ? Number.parseInt(first[2], 10) : 1;
  const node = el(isOrdered ? "ol" : "ul", isOrdered && start !== 1 ? { start } : {});
  const indent = first[1].length;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== isOrdered) break;
    const body = [item[3]];
    end += 1;
    while (end < lines.length && belongs(lines, end, indent)) {
      body.push(lines[end].replace(new RegExp(`^ {0,${indent + item[2].length + 1}}`), ""));
      end += 1;
    }
    node.append(listItem(body, depth));
  }
  return [node, Math.max(end, at + 1)];
}

// A line goes on with the item above when it is indented, or blank with an indented one after.
function belongs(lines, at, indent) {
  const isInside = (line) => line !== undefined && line.search(/\S/) > indent + 1;
  return lines[at].trim() ? isInside(lines[at]) : isInside(lines[at + 1]);
}

function listItem(body, depth) {
  const nodes = blocks(body, depth + 1);
  // A single paragraph is unwrapped, so that tight lists stay tight.
  if (nodes[0]?.tagName === "P") nodes.splice(0, 1, ...nodes[0].childNodes);
  return el("li", {}, ...nodes);
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
  const align = cells(lines[at + 1]).map((c) =>
    c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left",
  );
  const row = (line, tag) =>
    el("tr", {}, ...cells(line).slice(0, align.length).map((text, i) =>
      el(tag, { className: `to-${align[i]}` }, ...inline(text, 0))));
  const body = el("tbody");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) body.append(row(lines[end++], "td"));
  const node = el("table", {}, el("thead", {}, row(lines[at], "th")), body);
  return [el("div", { className: "table", tabIndex: 0 }, node), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return [el("p", {}, ...inline(text, 0)), end];
}

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^ {0,3}>/.test(line) ||
  ITEM.test(line);

const WRAPS = [
  ["***", "strong"], ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"],
];
const URL_START = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const LINK = /!?\[([^\[\]\n]{0,400})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,200}\))?)>?(?:\s+"[^"\n]{0,300}")?\s*\)/y;

function inline(text, depth) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(...withBreaks(plain));
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const found = span(text, at, depth);
    if (found) {
      flush();
      nodes.push(found.node);
      at = found.end;
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

/** The construct that begins exactly here, or null. */
function span(text, at, depth) {
  const char = text[at];
  if (char === "`") return codeSpan(text, at);
  if (char === "[" || (char === "!" && text[at + 1] === "[")) return link(text, at, depth);
  if (char === "h" && (at === 0 || !/\w/.test(text[at - 1]))) return bareLink(text, at);
  if ("*_~".includes(char) && depth < MAX_DEPTH) return emphasis(text, at, depth);
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
  const url = match[0].replace(/[.,;:!?)\]}*_~]+$/, "");
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
  el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

function emphasis(text, at, depth) {
  for (const [mark, tag] of WRAPS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    if (!text[from] || /\s/.test(text[from])) continue;
    if (mark[0] === "_" && at > 0 && /\w/.test(text[at - 1])) continue;
    const end = closing(text, from, mark);
    if (end < 0) continue;
    const inner = inline(text.slice(from, end), depth + 1);
    const node = el(tag, {}, ...inner);
    return { node: mark === "***" ? el("em", {}, node) : node, end: end + mark.length };
  }
  return null;
}

function closing(text, from, mark) {
  const limit = Math.min(text.length, from + 4000);
  for (let at = text.indexOf(mark, from); at >= 0 && at < limit; at = text.indexOf(mark, at + 1)) {
    const isSpaced = /\s/.test(text[at - 1]) || at === from;
    const isLonger = mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark);
    const isInWord = mark[0] === "_" && /\w/.test(text[at + mark.length] ?? "");
    if (!isSpaced && !isLonger && !isInWord && text[at - 1] !== "\\") return at;
  }
  return -1;
}

// In chats a line break in the source is a line break in the output.
function withBreaks(text) {
  const nodes = [];
  text.split(/ *\n/).forEach((line, i) => {
    if (i > 0) nodes.push(el("br"));
    if (line) nodes.push(document.createTextNode(line));
  });
  return nodes;
}
