// Mathematics: finds formulas in Markdown, and draws them with KaTeX. KaTeX is loaded when the
// first formula appears. It builds nodes, not HTML text, and it has no access to other hosts.

import { el } from "./dom.js";

const MAX_CHARS = 4000; // of a formula
const MAX_BARE_CHARS = 400; // of one without marks
const MAX_LINES = 80;
const BLOCK = /^\s*(\\\[|\$\$|\\begin\{((?:equation|align|alignat|gather|CD)\*?)\})/;

const MAX_DRAWINGS = 300; // that are kept

const drawings = new Map();
let katex = null;
let loading = null;

/** Whether a formula on lines of its own begins with this line. */
export const startsFormula = (line) => BLOCK.test(line);

/** The formula on lines of its own that begins here: {node, next}, or null. */
export function formulaBlock(lines, at) {
  const match = BLOCK.exec(lines[at]);
  if (!match) return null;
  const [, opening, environment] = match;
  const closing = environment ? `\\end{${environment}}` : closingOf(opening);
  const body = lines.slice(at, at + MAX_LINES).join("\n").trimStart();
  const end = body.indexOf(closing, opening.length);
  if (end < 0) return unfinished(lines, at);
  const after = body.slice(end + closing.length).split("\n", 1)[0];
  if (after.trim()) return null; // text follows on the same line: this is part of a paragraph
  const raw = body.slice(0, end + closing.length);
  const source = environment ? raw : body.slice(opening.length, end);
  return { node: formula(source, raw, true), next: at + raw.split("\n").length };
}

// The end of a formula that is being written is shown as it comes, and not as Markdown.
function unfinished(lines, at) {
  if (lines.length - at > MAX_LINES) return null;
  const rest = lines.slice(at);
  if (rest.slice(0, -1).some((line) => !line.trim())) return null;
  return { node: el("p", { className: "tex" }, rest.join("\n")), next: lines.length };
}

/** The formula that begins at this character: {node, end}, or null. */
export function formulaSpan(text, at) {
  const opening = ["\\(", "\\[", "$$", "$"].find((mark) => text.startsWith(mark, at));
  if (!opening) return null;
  const from = at + opening.length;
  const end = opening === "$" ? endOfDollars(text, at) : text.indexOf(closingOf(opening), from);
  if (end < 0 || end - from > MAX_CHARS || !text.slice(from, end).trim()) {
    return opening[0] === "\\" ? restOfLine(text, at) : null;
  }
  const close = end + opening.length;
  const isDisplay = opening === "\\[" || opening === "$$";
  return { node: formula(text.slice(from, end), text.slice(at, close), isDisplay), end: close };
}

/** `\ce{…}` without the marks of a formula: {node, end}, or null. */
export function chemistry(text, at) {
  let depth = 0;
  const limit = Math.min(text.length, at + MAX_BARE_CHARS);
  for (let end = at; end < limit && text[end] !== "\n"; end += 1) {
    if (text[end] === "{") depth += 1;
    if (text[end] !== "}" || --depth > 0) continue;
    const raw = text.slice(at, end + 1);
    return { node: formula(raw, raw, false), end: end + 1 };
  }
  return null;
}

function restOfLine(text, at) {
  const end = text.indexOf("\n", at);
  const raw = text.slice(at, end < 0 ? text.length : end);
  return { node: document.createTextNode(raw), end: at + raw.length };
}

// Amounts of money are not formulas: no space follows the first mark or precedes the last one,
// and no digit follows the last one (source: Pandoc's extension tex_math_dollars). A number and a
// word are not the beginning of a formula either.
function endOfDollars(text, at) {
  if (/[\w$]/.test(text[at - 1] ?? "") || /[\s$]/.test(text[at + 1] ?? " ")) return -1;
  if (/^[\d.,]+\s+[a-z]{2}/i.test(text.slice(at + 1, at + 40))) return -1;
  const limit = Math.min(text.length, at + MAX_CHARS);
  for (let end = text.indexOf("$", at + 1); end >= 0 && end < limit; end = text.indexOf("$", end + 1)) {
    if (text[end - 1] === "\\") continue;
    return /\s/.test(text[end - 1]) || /[\d$]/.test(text[end + 1] ?? "") ? -1 : end;
  }
  return -1;
}

const closingOf = (opening) => ({ "\\[": "\\]", "\\(": "\\)", $$: "$$" })[opening];

// Shows the source until KaTeX is loaded, and for a formula that KaTeX cannot read.
function formula(source, raw, isDisplay) {
  const node = el("span", { className: isDisplay ? "formula display" : "formula" }, raw);
  if (isDisplay) node.tabIndex = 0; // a wide formula can be scrolled
  if (katex) draw(node, source, isDisplay);
  else load().then(() => draw(node, source, isDisplay), () => {});
  return node;
}

function draw(node, source, isDisplay) {
  try {
    node.replaceChildren(typeset(source, isDisplay).cloneNode(true));
  } catch (error) {
    node.classList.add("tex");
    node.title = String(error.message);
    return;
  }
  if (node.isConnected) node.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
}

// The drawing of a formula. A growing text draws the formulas of its last block many times.
function typeset(source, isDisplay) {
  const name = `${isDisplay} ${source}`;
  if (!drawings.has(name)) {
    if (source.length > MAX_CHARS) throw new Error("This formula is too long to be drawn.");
    const drawing = document.createElement("span");
    katex.render(source, drawing, { displayMode: isDisplay, maxSize: 20, maxExpand: 500, strict: false });
    if (drawings.size >= MAX_DRAWINGS) drawings.clear();
    drawings.set(name, drawing);
  }
  return drawings.get(name);
}

// KaTeX's file is a script that sets a global name, not a module with exports.
function load() {
  loading ??= Promise.all([loadStyle(), import("./katex/katex.min.js")])
    .then(() => import("./katex/mhchem.min.js")) // \ce and \pu
    .then(() => { katex = globalThis.katex; });
  return loading;
}

function loadStyle() {
  return new Promise((resolve, reject) => {
    const href = new URL("katex/katex.min.css", import.meta.url).href;
    document.head.append(el("link", { rel: "stylesheet", href, onload: resolve, onerror: reject }));
  });
}
