// Markdown to DOM nodes: its blocks; `inline.js` reads what is inside a line. No HTML text is
// built: what a model writes ends up in text nodes, in elements that this code chooses, so none of it
// can become an attribute or a script. Images become links: loading one would send a
// request to another host.

import { el, copyWithFeedback } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline, MAX_DEPTH, noteMark, withoutEnd } from "./inline.js";
import { formulaBlock, startsFormula } from "./math.js";

// Each expression takes linear time: two repeats that match the same characters never follow each
// other, and what follows a repeat cannot fail.
const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const LANGUAGE = /^\s*([\w+#.-]{0,32})/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/s;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,9})([-*+]|\d{1,9}[.)])\s+(.*)$/s;
const TASK = /^\[([ xX])\]\s+/;
// The beginning of a mark at the end of a growing text: the next characters decide what it is.
const HALF_MARK = /(^|\n)[ \t]*(?:\d{1,9}[.)]?|[-*+] *(?:\[[ xX]?\]?)?|#{1,6}|>|[`~]{1,2}|\||\\|\$)$/;
const NOTE = /^ {0,3}\[\^([\w-]{1,32})\]:(?:\s+(.*))?$/s;
const TABLE_RULE = /^:?-+:?$/; // a cell of it

/** A Markdown text on the page, which may grow. The text is not trusted. */
export class MarkdownView {
  constructor() {
    this.root = el("div", { className: "text" });
    this.source = "";
    this.starts = []; // the line at which each block begins
  }

  /**
   * Shows the text. While it grows, only its last two blocks are read again: text that is added
   * at the end can continue the last block, and can make one block of both. Elements that stay
   * the same are kept, with the user's selection in them.
   */
  show(source, isFinal) {
    const shown = isFinal ? source : source.replace(HALF_MARK, "$1");
    const isGrown = !isFinal && shown.startsWith(this.source);
    const kept = isGrown ? Math.max(0, this.starts.length - 2) : 0;
    const found = blocks(linesOf(shown), 0, this.starts[kept] ?? 0);
    found.forEach(({ node }, i) => keepOrReplace(this.root, kept + i, node));
    while (this.root.childNodes.length > kept + found.length) this.root.lastChild.remove();
    this.starts = [...this.starts.slice(0, kept), ...found.map(({ line }) => line)];
    this.source = shown;
  }
}

function keepOrReplace(root, index, node) {
  const old = root.childNodes[index];
  if (!old) root.append(node);
  else if (!old.isEqualNode(node)) old.replaceWith(node);
}

const linesOf = (source) => source.replace(/\r\n?/g, "\n").split("\n");
const nodesOf = (lines, depth) => blocks(lines, depth, 0).map(({ node }) => node);

/** The blocks from this line on, each with the line at which it begins. */
function blocks(lines, depth, begin) {
  const found = [];
  let at = begin;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [node, next] = block(lines, at, depth);
    found.push({ node, line: at });
    at = next;
  }
  return found;
}

function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    // The page has its own h1 and h2: an answer's headings go below them.
    const level = Math.min(6, heading[1].length + 2);
    const title = withoutEnd(heading[2], "#").trim();
    return [el(`h${level}`, {}, inline(title, 0)), at + 1];
  }
  if (RULE.test(line)) return [el("hr"), at + 1];
  const formula = formulaBlock(lines, at);
  if (formula) return [formula.node, formula.next];
  if (/^ {0,3}>/.test(line) && depth < MAX_DEPTH) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < MAX_DEPTH) return list(lines, at, depth);
  if (line.includes("|") && cells(lines[at + 1] ?? "").every((cell) => TABLE_RULE.test(cell))) {
    return table(lines, at);
  }
  return NOTE.test(line) ? note(lines, at) : paragraph(lines, at);
}

function code(lines, at, fence) {
  const close = new RegExp(`^ {0,3}${fence[2][0] === "`" ? "`" : "~"}{${fence[2].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  const language = LANGUAGE.exec(fence[3])[1];
  const copy = el("button", { type: "button", className: "copy" }, "Copy");
  copy.addEventListener("click", () => copyWithFeedback(copy, text));
  const node = el(
    "div",
    { className: "code" },
    el("div", { className: "code-head" }, el("span", {}, language || "text"), copy),
    el("pre", { tabIndex: 0 }, el("code", {}, highlight(text, language))),
  );
  return [node, end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [el("blockquote", {}, nodesOf(inner, depth + 1)), end];
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
  const task = TASK.exec(body[0]);
  if (task) body[0] = body[0].slice(task[0].length);
  const nodes = nodesOf(body, depth + 1);
  // A single paragraph is unwrapped, so that tight lists stay tight.
  const unwrapped = nodes[0]?.tagName === "P" ? [...nodes.shift().childNodes] : [];
  if (!task) return el("li", {}, unwrapped, nodes);
  const isDone = task[1] !== " ";
  const box = el("input", {
    type: "checkbox", disabled: true, defaultChecked: isDone, "aria-label": isDone ? "done" : "to do",
  });
  return el("li", { className: "task" }, box, unwrapped, nodes);
}

// `\|` is a character of a cell, also in its code.
const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, at) {
  const align = cells(lines[at + 1]).map((c) =>
    c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left",
  );
  const row = (line, tag) =>
    el("tr", {}, cells(line).slice(0, align.length).map((text, i) =>
      el(tag, { className: `to-${align[i]}` }, inline(text, 0))));
  const body = el("tbody");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) body.append(row(lines[end++], "td"));
  const node = el("table", {}, el("thead", {}, row(lines[at], "th")), body);
  return [el("div", { className: "table", tabIndex: 0 }, node), end];
}

function paragraph(lines, at) {
  const end = endOfParagraph(lines, at);
  return [el("p", {}, inline(joined(lines.slice(at, end)), 0)), end];
}

/** The text of a footnote, below a text or in it. */
function note(lines, at) {
  const end = endOfParagraph(lines, at);
  const [, label, first = ""] = NOTE.exec(lines[at]);
  const text = joined([first, ...lines.slice(at + 1, end)]);
  return [el("p", { className: "note-text" }, noteMark(label), " ", inline(text, 0)), end];
}

function endOfParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end += 1;
  return end;
}

const joined = (lines) => lines.map((line) => line.trimStart()).join("\n");

const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^ {0,3}>/.test(line) ||
  ITEM.test(line) || NOTE.test(line) || startsFormula(line);
