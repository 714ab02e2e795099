// The dialogs: settings, the API key, and the request of an answer.

import { byId, copyWithFeedback } from "./dom.js";
import { parsed } from "./request.js";
import { DEFAULT_SETTINGS } from "./store.js";
import { ToolList } from "./tools.js";

const FIELDS = Object.keys(DEFAULT_SETTINGS).filter((name) => !["tools", "servers"].includes(name));

/** What the server does without a value, and without a default of the model. */
const NEUTRAL = { temperature: "1", top_p: "1, all", top_k: "all", min_p: "0, all", presence_penalty: "0, none", max_tokens: "to the end" };

/** Opens the key dialog. Resolves to {key, keep}, or null when the user cancels. */
export function askForKey() {
  const dialog = byId("key-dialog");
  byId("key").value = "";
  dialog.returnValue = "";
  byId("cancel-key").onclick = () => dialog.close("");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const key = byId("key").value.trim();
      byId("key").value = "";
      const isGiven = dialog.returnValue === "save" && key !== "";
      resolve(isGiven ? { key, keep: byId("keep-key").checked } : null);
    }, { once: true });
  });
}

/** The settings dialog; changes apply at once, and `onChange` is called when it closes. */
export class SettingsDialog {
  constructor(settings, onChange, onKey, servers) {
    this.settings = settings;
    this.sampling = { model: {}, chat: {} };
    this.dialog = byId("settings");
    this.form = this.dialog.querySelector("form");
    this.tools = new ToolList(settings);
    byId("open-settings").addEventListener("click", () => this.open());
    this.form.addEventListener("input", () => this.take());
    byId("reset-settings").addEventListener("click", () => {
      this.fill(DEFAULT_SETTINGS);
      this.take();
      this.tools.save([]);
      servers.choose({ off: [], own: [] });
    });
    byId("change-key").addEventListener("click", () => {
      this.dialog.close();
      onKey();
    });
    this.dialog.addEventListener("close", () => onChange(this.settings));
    // A click on the backdrop arrives at the dialog itself.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog && this.form.reportValidity()) this.dialog.close();
    });
  }

  open() {
    this.fill(this.settings);
    this.showDefaults();
    this.tools.draw();
    this.dialog.showModal();
  }

  fill(settings) {
    for (const name of FIELDS) this.form.elements[name].value = settings[name];
  }

  /** Shows in each empty field what applies without a value. */
  showDefaults() {
    const { model, chat } = this.sampling;
    for (const [name, neutral] of Object.entries(NEUTRAL)) {
      const own = name in model ? `${model[name]}, the model's` : neutral;
      this.form.elements[name].placeholder = name in chat ? String(chat[name]) : own;
    }
  }

  take() {
    for (const name of FIELDS) this.settings[name] = this.form.elements[name].value;
    const schema = this.form.elements.schema;
    const isWrong = schema.value.trim() !== "" && parsed(schema.value) === null;
    schema.setCustomValidity(isWrong ? "This is not JSON." : "");
  }
}

/** Shows the request of an answer, as it was sent. */
export function showRequest(request) {
  const dialog = byId("request-dialog");
  const text = JSON.stringify(request.body, null, 2);
  byId("request-path").textContent = `POST /${request.path}`;
  byId("request-body").textContent = text;
  byId("copy-request").onclick = (event) => copyWithFeedback(event.target, text);
  dialog.showModal();
}
