// The model picker: the served models. A server of several also reports their states; then a button
// loads or unloads the chosen one, and the list is read again every other second.

import { changeModel, listModels } from "./api.js";
import { byId, el } from "./dom.js";

const INTERVAL_MS = 2000;
const LABEL = { loaded: "Unload", unloaded: "Load", failed: "Load", loading: "Loading…", unloading: "Unloading…" };

export class ModelPicker {
  /** `onChoose`: called with the id when another model is chosen. */
  constructor(onChoose) {
    this.select = byId("model");
    this.button = byId("model-load");
    this.models = [];
    this.onChoose = onChoose;
    this.select.addEventListener("change", () => { this.draw(); onChoose(this.select.value); });
    this.button.addEventListener("click", () => this.press());
  }

  /** Reads the list, and goes on reading it if models come and go. Returns the models. */
  async start() {
    await this.refresh();
    if (this.models.some((one) => one.status)) {
      setInterval(() => document.hidden || this.refresh().catch(() => {}), INTERVAL_MS);
    }
    return this.models;
  }

  async refresh() {
    this.models = await listModels();
    const ids = this.models.map((one) => one.id).join("\n");
    const chosen = this.select.value;
    if (ids !== this.ids) {
      this.select.replaceChildren(...this.models.map(({ id }) => el("option", { value: id }, id)));
      if (this.models.some((one) => one.id === chosen)) this.select.value = chosen;
      this.select.disabled = this.models.length < 2;
      this.ids = ids;
    }
    this.draw();
    if (chosen && this.select.value !== chosen) this.onChoose(this.select.value);
  }

  chosen() {
    return this.models.find((one) => one.id === this.select.value);
  }

  draw() {
    for (const [index, { id, base, status }] of this.models.entries()) {
      const name = base ? `${id}, adapter of ${base}` : id;
      this.select.options[index].textContent = status ? `${name} – ${status.value}` : name;
    }
    const status = this.chosen()?.status;
    this.button.hidden = !status;
    if (!status) return;
    this.button.textContent = LABEL[status.value];
    this.button.disabled = status.value.endsWith("ing") || status.num_requests > 0;
    this.button.title = status.error ?? `${Math.round(status.num_bytes / 2 ** 20).toLocaleString()} MiB`;
  }

  async press() {
    const { id, status } = this.chosen();
    const isLoaded = status.value === "loaded";
    status.value = isLoaded ? "unloading" : "loading";
    this.draw();
    try {
      await changeModel(id, isLoaded ? "unload" : "load");
    } catch (error) {
      alert(error.message);
    }
    await this.refresh();
  }
}
