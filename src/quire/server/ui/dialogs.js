// The two dialogs: settings, and the API key.

import { byId } from "./dom.js";
import { DEFAULT_SETTINGS } from "./store.js";

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
  constructor(settings, onChange, onKey) {
    this.settings = settings;
    this.dialog = byId("settings");
    this.form = this.dialog.querySelector("form");
    byId("open-settings").addEventListener("click", () => this.open());
    this.form.addEventListener("input", () => this.take());
    byId("reset-settings").addEventListener("click", () => {
      this.fill(DEFAULT_SETTINGS);
      this.take();
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
    this.dialog.showModal();
  }

  fill(settings) {
    for (const name of Object.keys(DEFAULT_SETTINGS)) {
      this.form.elements[name].value = settings[name];
    }
  }

  take() {
    for (const name of Object.keys(DEFAULT_SETTINGS)) {
      this.settings[name] = this.form.elements[name].value;
    }
  }
}

/** Settings as request fields; empty ones are left out (the model's defaults). */
export function samplingFields(settings) {
  const fields = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    const value = Number(settings[name]);
    if (settings[name] !== "" && Number.isFinite(value)) fields[name] = value;
  }
  const stop = settings.stop.split("|").filter((text) => text !== "");
  if (stop.length) fields.stop = stop;
  return fields;
}
