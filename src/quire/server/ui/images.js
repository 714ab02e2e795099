// The images of the next message: chosen from files, dropped on the page, or pasted. They are sent
// as data URLs.

import { byId, el } from "./dom.js";

const MAX_BYTES = 64 * 2 ** 20; // the server's limit for a file
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

export class Attachments {
  constructor() {
    this.urls = [];
    this.isOn = false;
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

  /** Whether the chosen model takes images. */
  allow(isOn) {
    this.isOn = isOn;
    byId("attach").hidden = !isOn;
    if (!isOn) this.set({});
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
    document.body.classList.toggle("dropping", this.isOn && event.type !== "drop" && !hasLeft);
    if (event.type === "drop") this.add(files);
  }

  async add(files) {
    const good = [...files].filter((one) => TYPES.includes(one.type) && one.size <= MAX_BYTES);
    let note = "";
    if (!this.isOn) note = "This model takes no images.";
    else if (good.length < files.length) note = "Images are PNG, JPEG, WebP, GIF or BMP files of at most 64 MiB.";
    const urls = this.isOn ? await Promise.all(good.map(dataUrl)) : [];
    this.set({ images: [...this.urls, ...urls] });
    byId("attach-note").textContent = note;
  }

  get isEmpty() {
    return this.urls.length === 0;
  }

  /** Attaches what this message has, in place of what was attached. */
  set({ images: urls = [] }) {
    this.urls = urls;
    byId("attach-note").textContent = "";
    this.strip.hidden = urls.length === 0;
    this.strip.replaceChildren(...urls.map((url, index) =>
      el("li", {},
        thumbnail(url),
        el("button", {
          type: "button", className: "remove", "aria-label": `Remove image ${index + 1}`,
          onclick: () => this.set({ images: urls.filter((_, i) => i !== index) }),
        }, "×"))));
  }

  /** The fields of the message that has them; they are no longer attached afterwards. */
  taken() {
    const { urls: images } = this;
    this.set({});
    return images.length ? { images } : {};
  }
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
