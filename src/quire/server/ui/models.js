// The model picker: the served models, as the live view reports them. A server of several also reports
// their states; then a button loads or unloads the chosen one.

import { changeModel } from "./api.js";
import { byId, el } from "./dom.js";
import { showShortly } from "./notices.js";

const LABEL = { loaded: "Unload", unloaded: "Load", failed: "Load", loading: "Loading…", unloading: "Unloading…" };

/** The name that people read: of a path its last part, of a GGUF file that without its ending. */
export function shortName(id) {
  const isPath = /^(\.{0,2}\/|~|[A-Za-z]:[\\/])/.test(id) || /\.gguf$/i.test(id);
  if (!isPath) return id;
  const name = id.replace(/[\\/]+$/, "").split(/[\\/]/).at(-1);
  return name.replace(/(-\d{5}-of-\d{5})?\.gguf$/i, "") || id;
}

export class ModelPicker {
  /** `onChoose`: called with the id when the user, or a change of the list, chooses another model. */
  constructor(onChoose) {
    this.select = byId("model");
    this.button = byId("model-load");
    this.models = [];
    this.onChoose = onChoose;
    this.select.addEventListener("change", () => { this.draw(); onChoose(this.select.value); });
    this.button.addEventListener("click", () => this.press());
  }

  /** Shows the cards of the served models; `wanted` is chosen first, if it is among them. */
  show(cards, wanted) {
    const before = this.models.map((one) => one.id).join("\n");
    this.models = cards.map(({ id, parent, max_model_len: maxLength, status }) =>
      ({ id: String(id), base: parent ?? null, maxLength, status: status ?? null }));
    const chosen = this.select.value || wanted;
    if (this.models.map((one) => one.id).join("\n") !== before) {
      this.select.replaceChildren(...this.models.map(({ id }) => el("option", { value: id, title: id }, id)));
      if (this.has(chosen)) this.select.value = chosen;
      this.select.disabled = this.models.length < 2;
    }
    this.draw();
    if (this.select.value !== chosen || !before) this.onChoose(this.select.value);
  }

  has(id) {
    return this.models.some((one) => one.id === id);
  }

  /** Chooses a model, if it is served. */
  choose(id) {
    if (!this.has(id) || this.select.value === id) return;
    this.select.value = id;
    this.draw();
    this.onChoose(id);
  }

  chosen() {
    return this.models.find((one) => one.id === this.select.value);
  }

  /** The short name of a model; the whole one if another model has the same. */
  nameOf(id) {
    const name = shortName(id);
    return this.models.some((one) => one.id !== id && shortName(one.id) === name) ? id : name;
  }

  draw() {
    for (const [index, { id, base, status }] of this.models.entries()) {
      const name = base ? `${this.nameOf(id)}, adapter of ${this.nameOf(base)}` : this.nameOf(id);
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
      showShortly(error.message);
    }
  }
}
