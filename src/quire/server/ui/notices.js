// What the page says about itself: a note above the messages that stays, and a short one that goes,
// with what can be done about it.

import { byId, count, el } from "./dom.js";

const SHORTLY_MS = 10_000;
const NEARLY_FULL = 0.8;
let timer = 0;
let gone = null;

/** Shows a text for a few seconds. `action`: {label, run}; `onGone` is called if it was not taken. */
export function showShortly(text, action = null, onGone = null) {
  dismiss();
  gone = onGone;
  const button = action && el("button", { type: "button", className: "link", onclick: () => {
    gone = null;
    dismiss();
    action.run();
  } }, action.label);
  byId("toast").replaceChildren(el("span", {}, text), button ?? "");
  byId("toast").hidden = false;
  timer = setTimeout(dismiss, SHORTLY_MS);
}

function dismiss() {
  clearTimeout(timer);
  byId("toast").hidden = true;
  gone?.();
  gone = null;
}

/** Shows a text until it is replaced; an empty one hides it. */
export function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** A text if the browser's storage is nearly full; otherwise an empty one. */
export async function storageWarning() {
  const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
  if (!quota || usage / quota < NEARLY_FULL) return "";
  const size = (bytes) => `${count(Math.round(bytes / 2 ** 20))} MiB`;
  return `The browser's storage is nearly full: ${size(usage)} of ${size(quota)}. ` +
    "Export conversations, and delete those that you do not need.";
}

/** Asks the browser not to delete the page's storage by itself when the disk is full. */
export const keepStorage = () => navigator.storage?.persist?.().catch(() => {});
