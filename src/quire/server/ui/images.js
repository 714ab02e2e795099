// The files of the next message: chosen, dropped on the page, pasted, or recorded. Images and sounds
// are sent as they are, of other files the text.

import { countTokens } from "./api.js";
import { byId, count, el } from "./dom.js";
import { attachmentOf, promptOf, sizeOf } from "./file_text.js";
import { Recorder, mayRecord } from "./recorder.js";

const MAX_BYTES = 64 * 2 ** 20; // the server's limit for a file
const MAX_SOUND_BYTES = 8 * 2 ** 20; // as base64 within the server's limit for a body
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

export class Attachments {
  constructor() {
    this.images = [];
    this.sounds = [];
    this.files = [];
    this.model = "";
    this.takes = {};
    this.recorder = new Recorder("record", (file) => this.add([file]), (text, isError) => this.note(text, isError));
    this.strip = byId("attachments");
    this.input = byId("image-input");
    byId("attach").addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      this.add(this.input.files);
      this.input.value = "";
    });
    document.addEventListener("paste", (event) => this.paste(event));
    for (const name of ["dragover", "dragleave", "drop"]) {
      document.addEventListener(name, (event) => this.drag(event));
    }
  }

  /** Whether the chosen model takes images and sounds, {images, sounds}, and its name. */
  allow(takes, model) {
    Object.assign(this, { takes, model });
    const kept = { images: takes.images ? this.images : [], sounds: takes.sounds ? this.sounds : [], attachments: this.files };
    if (kept.images.length < this.images.length || kept.sounds.length < this.sounds.length) this.set(kept);
    byId("record").hidden = !takes.sounds || !mayRecord();
    this.count();
  }

  // Copied cells of a table come as a text and as a picture: the text is what is meant.
  paste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    this.add(files);
  }

  // A browser opens a dropped file in place of the page, unless the page takes the event.
  drag(event) {
    const { files, types } = event.dataTransfer;
    if (!types.includes("Files")) return;
    event.preventDefault();
    const hasLeft = event.type === "dragleave" && event.relatedTarget === null;
    document.body.classList.toggle("dropping", event.type !== "drop" && !hasLeft);
    if (event.type === "drop") this.add(files);
  }

  async add(files) {
    const notes = [];
    const found = await Promise.all([...files].map((file) =>
      this.read(file).catch((error) => void notes.push(error.message))));
    const good = found.filter(Boolean);
    this.set({
      images: [...this.images, ...good.filter((one) => typeof one === "string")],
      sounds: [...this.sounds, ...good.filter((one) => one.url)],
      attachments: [...this.files, ...good.filter((one) => typeof one !== "string" && !one.url)],
    });
    this.note([...new Set(notes)].join(" "), notes.length > 0);
    if (!notes.length) await this.count();
  }

  /**
   * An image as a data URL, a sound as {name, url}, another file as {name, type, text}. Throws what is
   * wrong with it.
   */
  async read(file) {
    if (file.type.startsWith("audio/")) return this.readSound(file);
    if (!file.type.startsWith("image/") || file.type === "image/svg+xml") return attachmentOf(file);
    if (!this.takes.images) throw new Error("This model takes no images.");
    if (TYPES.includes(file.type) && file.size <= MAX_BYTES) return dataUrl(file);
    throw new Error("Images are PNG, JPEG, WebP, GIF or BMP files of at most 64 MiB.");
  }

  async readSound(file) {
    if (!this.takes.sounds) throw new Error("This model takes no audio.");
    if (file.size > MAX_SOUND_BYTES) throw new Error(`Sounds have at most ${MAX_SOUND_BYTES / 2 ** 20} MiB.`);
    return { name: file.name.slice(0, 200), url: await dataUrl(file) };
  }

  note(text, isError = false) {
    byId("attach-note").textContent = text;
    byId("attach-note").classList.toggle("error", isError);
  }

  /** Says how many tokens the files have, and whether they are too many for the model. */
  async count() {
    const { files, model } = this;
    if (!files.length || !model) return;
    try {
      const { count: tokens, max_model_len: room } = await countTokens(model, promptOf({ attachments: files }));
      if (files !== this.files || model !== this.model) return; // others by now
      const isLong = tokens >= room;
      this.note(isLong
        ? `The files have ${count(tokens)} tokens, and the model takes ${count(room)} with the answer. Remove some, or choose another model.`
        : `The files have ${count(tokens)} of the ${count(room)} tokens that the model takes.`, isLong);
    } catch (error) {
      if (files === this.files) this.note(`The tokens of the files were not counted. ${error.message}`);
    }
  }

  get isEmpty() {
    return this.images.length + this.sounds.length + this.files.length === 0;
  }

  /** Attaches what this message has, in place of what was attached. */
  set({ images = [], sounds = [], attachments = [] }) {
    this.images = images;
    this.sounds = sounds;
    this.files = attachments;
    this.note("");
    this.strip.hidden = this.isEmpty;
    const without = (list, index) => list.filter((_, i) => i !== index);
    this.strip.replaceChildren(
      ...images.map((url, index) => item(thumbnail(url), `Remove image ${index + 1}`,
        () => this.change({ images: without(images, index), sounds, attachments }))),
      ...sounds.map((sound, index) => item(chip(sound, sizeOf(bytesOf(sound))), `Remove ${sound.name}`,
        () => this.change({ images, sounds: without(sounds, index), attachments }))),
      ...attachments.map((file, index) => item(chip(file), `Remove ${file.name}`,
        () => this.change({ images, sounds, attachments: without(attachments, index) }))));
  }

  change(kept) {
    this.set(kept);
    this.count();
  }

  /** The fields of the message that has them; they are no longer attached afterwards. */
  taken() {
    const { images, sounds, files: attachments } = this;
    this.set({});
    const lists = Object.entries({ images, sounds, attachments });
    return Object.fromEntries(lists.filter(([, list]) => list.length));
  }
}

const item = (shown, label, onclick) => el("li", {}, shown,
  el("button", { type: "button", className: "remove", "aria-label": label, onclick }, "×"));

const chip = ({ name, text = "" }, size = sizeOf(new Blob([text]).size)) => el("span", { className: "file" },
  el("span", { className: "file-name", title: name }, name),
  el("span", { className: "muted" }, size));

const bytesOf = ({ url }) => Math.floor((url.length - url.indexOf(",") - 1) * 0.75);

/** A player of a sound. */
export const player = ({ name, url }) => el("audio", { src: url, controls: true, className: "sound", "aria-label": name });

/** A file of a message, folded; its text is drawn when it is opened. */
export function attachedFile(file) {
  const text = el("pre", {}, el("code", {}));
  const open = () => (text.firstChild.textContent = file.text ?? "");
  return el("details", { className: "call", ontoggle: open }, el("summary", {}, chip(file)), text);
}

/** A small view of an image. */
export const thumbnail = (url) => el("img", { src: url, alt: "Attached image", className: "thumbnail" });

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
