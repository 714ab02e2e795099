// DOM helpers, used by every other module. Text is only added to a page
// as text nodes and attributes of known elements: there is no way to pass HTML through here.

/** An element with properties, attributes (`aria-*`, `data-*`, `role`) and children, or arrays of them. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && !key.includes("-")) node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

/** Replaces the children, unless they are these already: a moved element loses its selection. */
export function setChildren(node, children) {
  const old = node.childNodes;
  const isSame = old.length === children.length && children.every((child, i) => child === old[i]);
  if (!isSame) node.replaceChildren(...children);
}

/** The element with this id; a missing one is a mistake in index.html. */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`index.html has no #${id}`);
  return node;
}

/** `1234567` -> `1,234,567`, in the reader's locale. */
export const count = (n) => Number(n).toLocaleString();

/** Milliseconds below a second, seconds above. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 99.5 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

/** `3 h 12 min`, `41 s`. */
export function uptime(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** One decimal below a hundred, none above. */
export const rate = (n) => (n < 99.95 ? n.toFixed(1) : count(Math.round(n)));

/** Puts text on the clipboard and shows it on the button for a moment. */
export async function copyWithFeedback(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = copyBySelection(text) ? "Copied" : "Copy failed";
  }
  setTimeout(() => (button.textContent = before), 1400);
}

// The clipboard API exists on https and localhost only; for a server on the local
// network there is this fallback.
function copyBySelection(text) {
  const area = el("textarea", { value: text, className: "offscreen" });
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } finally {
    area.remove();
  }
}

const probe = el("i", { className: "offscreen", "aria-hidden": "true" });

/** The colour that a CSS variable has in the current theme, for canvases. */
export function cssColor(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Sizes a canvas to its box in device pixels and returns its scaled context. */
export function canvasContext(canvas) {
  const box = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(box.width * scale));
  const height = Math.max(1, Math.round(box.height * scale));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width: box.width, height: box.height };
}
