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
    document.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    document.addEventListener("dragover", (event) => {
      if (this.isOn && event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
  }

  /** Whether the chosen model takes images. */
  allow(isOn) {
    this.isOn = isOn;
    byId("attach").hidden = !isOn;
    if (!isOn) this.set([]);
  }

  take(event, data) {
    if (!this.isOn || !data.files.length) return;
    event.preventDefault();
    this.add(data.files);
  }

  async add(files) {
    const good = [...files].filter((one) => TYPES.includes(one.type) && one.size <= MAX_BYTES);
    if (good.length < files.length) {
      byId("announcer").textContent = "Images are PNG, JPEG, WebP, GIF or BMP files of at most 64 MiB.";
    }
    const urls = await Promise.all(good.map(dataUrl));
    this.set([...this.urls, ...urls]);
  }

  set(urls) {
    this.urls = urls;
    this.strip.hidden = urls.length === 0;
    this.strip.replaceChildren(...urls.map((url, index) =>
      el("li", {},
        thumbnail(url),
        el("button", {
          type: "button", className: "remove", "aria-label": `Remove image ${index + 1}`,
          onclick: () => this.set(urls.filter((_, i) => i !== index)),
        }, "×"))));
  }

  /** The images, which are no longer attached afterwards. */
  taken() {
    const { urls } = this;
    this.set([]);
    return urls;
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
