// Syntax highlighting: comments, strings, numbers and keywords of common languages.
// One pass from left to right; unknown syntax stays plain text.

import { el } from "./dom.js";

const MAX_CHARS = 60_000;
const HASH = new Set(["python", "py", "bash", "sh", "shell", "zsh", "yaml", "yml", "toml", "ruby",
  "rb", "r", "perl", "dockerfile", "makefile", "ini", "conf", "julia"]);
const DASH = new Set(["sql", "lua", "haskell", "hs"]);
const PLAIN = new Set(["", "text", "txt", "plain", "markdown", "md", "console", "output"]);

const KEYWORDS = new Set(
  ("abstract and as assert async await begin bool boolean break byte case catch char class const " +
    "constexpr continue data def default defer del delete do done double elif else elsif end enum " +
    "except export extends extern False false fi final finally float fn for foreach from func " +
    "function global go goto if impl implements import in include inline instanceof int interface " +
    "is lambda let local long loop match mod module move mut namespace new nil None nonlocal not " +
    "null nullptr of operator or override package pass private protected pub public raise ref " +
    "return self short signed sizeof static string struct super switch template then this throw " +
    "throws trait True true try type typedef typename typeof undefined union unless unsafe unsigned " +
    "until use using val var virtual void volatile when where while with yield " +
    "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT RIGHT INNER " +
    "OUTER ON GROUP BY ORDER HAVING LIMIT AS AND OR NOT NULL PRIMARY KEY DISTINCT").split(" "),
);

// A string has an end, and is bounded: a mark without partner is looked for from many places.
const STRING =
  String.raw`"(?:[^"\\\n]|\\.){0,999}"|'(?:[^'\\\n]|\\.){0,999}'|` + "`(?:[^`\\\\]|\\\\.){0,999}`";
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;
const WORD = String.raw`[A-Za-z_]\w*`;

function grammarFor(language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return null;
  const comment = HASH.has(name)
    ? String.raw`#[^\n]*`
    : DASH.has(name)
      ? String.raw`--[^\n]*`
      : String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
  const triple = name === "python" || name === "py" ? `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|` : "";
  return new RegExp(`(${comment})|(${triple}${STRING})|(${NUMBER})|(${WORD})`, "g");
}

/** Nodes for a piece of code: text, and spans of the classes `c`, `s`, `n`, `k`. */
export function highlight(text, language) {
  const grammar = grammarFor(language);
  if (!grammar || text.length > MAX_CHARS) return [document.createTextNode(text)];
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(grammar)) {
    const kind = match[1] ? "c" : match[2] ? "s" : match[3] ? "n" : KEYWORDS.has(match[4]) ? "k" : "";
    if (!kind) continue;
    if (match.index > done) nodes.push(document.createTextNode(text.slice(done, match.index)));
    nodes.push(el("span", { className: kind }, match[0]));
    done = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(done)));
  return nodes;
}
