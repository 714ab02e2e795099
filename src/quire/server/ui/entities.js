// HTML's character references, which models write in Markdown: `&nbsp;`, `&#8594;`, `&#x2192;`.
// A table, and not the browser's parser: no text of a model goes to a parser of HTML.

const REFERENCE = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([A-Za-z]{2,8}\d{0,2}));/y;

const NAMES = new Map(
  ("amp& lt< gt> quot\" apos' copy© reg® trade™ hellip… mdash— ndash– lsquo‘ rsquo’ ldquo“ rdquo” " +
    "laquo« raquo» bull• middot· deg° plusmn± times× divide÷ frac12½ frac14¼ frac34¾ sup1¹ sup2² sup3³ " +
    "microµ le≤ ge≥ ne≠ asymp≈ equiv≡ infin∞ radic√ sum∑ prod∏ int∫ part∂ nabla∇ isin∈ cap∩ cup∪ " +
    "larr← uarr↑ rarr→ darr↓ harr↔ lArr⇐ rArr⇒ hArr⇔ euro€ pound£ yen¥ cent¢ sect§ para¶ dagger† " +
    "check✓ star☆ hearts♥ minus− prime′ forall∀ exist∃ empty∅ sub⊂ sup⊃ and∧ or∨ not¬ " +
    "alpha\u03b1 beta\u03b2 gamma\u03b3 delta\u03b4 epsilon\u03b5 eta\u03b7 theta\u03b8 lambda\u03bb mu\u03bc pi\u03c0 rho\u03c1 " +
    "sigma\u03c3 tau\u03c4 phi\u03c6 chi\u03c7 psi\u03c8 omega\u03c9 Gamma\u0393 Delta\u0394 Theta\u0398 Lambda\u039b Sigma\u03a3 " +
    "Phi\u03a6 Psi\u03a8 Omega\u03a9")
    .split(" ").map((pair) => [pair.slice(0, -1), pair.at(-1)]),
).set("nbsp", "\u00a0").set("ensp", "\u2002").set("emsp", "\u2003").set("thinsp", "\u2009");

/** The reference that begins at this character, {text, end}, or null. */
export function reference(text, at) {
  REFERENCE.lastIndex = at;
  const match = REFERENCE.exec(text);
  if (!match) return null;
  const [, decimal, hexadecimal, name] = match;
  const found = name ? NAMES.get(name) : characterOf(Number.parseInt(decimal ?? hexadecimal, decimal ? 10 : 16));
  return found === undefined ? null : { text: found, end: REFERENCE.lastIndex };
}

// Controls, halves of pairs, marks of direction, and numbers that are no character are shown as U+FFFD.
function characterOf(code) {
  const isPlain = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) && (code > 0x9f || (code > 0x1f && code < 0x7f));
  const character = isPlain || code === 9 || code === 10 ? String.fromCodePoint(code) : "\ufffd";
  return /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(character) ? "\ufffd" : character;
}
