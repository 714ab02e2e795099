// What is said in a recording or a sound file, with times, for servers whose model writes down speech.
// Takes the place of the chat, which such a model cannot have. Nothing of it is stored.

import { explain } from "./answers.js";
import { transcribed } from "./api.js";
import { byId, copyWithFeedback, el } from "./dom.js";
import { download } from "./files.js";
import { Recorder, clock, mayRecord } from "./recorder.js";

/** Wires the view; `model()` names the model that is asked. */
export function wireSpeech(model) {
  return new SpeechView(model);
}

class SpeechView {
  constructor(model) {
    Object.assign(this, { model, segments: [], name: "", controller: null, address: "" });
    this.player = byId("sound");
    this.input = byId("sound-input");
    this.recorder = new Recorder("speech-record", (file) => this.run(file), (text, isError) => this.note(text, isError));
    byId("speech-record").hidden = !mayRecord();
    byId("speech-choose").addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      const [file] = this.input.files;
      this.input.value = "";
      if (file) this.run(file);
    });
    for (const name of ["dragover", "drop"]) {
      byId("speech").addEventListener(name, (event) => this.drag(event));
    }
    byId("speech-stop").addEventListener("click", () => this.controller?.abort());
    const copy = byId("speech-copy");
    copy.addEventListener("click", () => copyWithFeedback(copy, WRITERS.txt(this.segments)));
    for (const kind of Object.keys(WRITERS)) {
      byId(`speech-${kind}`).addEventListener("click", () =>
        download(new Blob([WRITERS[kind](this.segments)], { type: "text/plain" }), `${this.name}.${kind}`));
    }
  }

  drag(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    const [file] = event.type === "drop" ? event.dataTransfer.files : [];
    if (file) this.run(file);
  }

  note(text, isError = false) {
    byId("speech-note").textContent = text;
    byId("speech-note").classList.toggle("error", isError);
  }

  /** Transcribes a file, in place of the one before. */
  async run(file) {
    this.controller?.abort();
    const controller = new AbortController();
    Object.assign(this, { controller, segments: [], name: file.name.replace(/\.[^.]*$/, "") || "sound" });
    this.play(file);
    byId("segments").replaceChildren();
    this.show(true);
    this.note(`Sending ${file.name} …`);
    const form = new FormData();
    const fields = { model: this.model(), response_format: "verbose_json", stream: "true", language: byId("speech-language").value.trim() };
    for (const [name, value] of Object.entries(fields)) if (value) form.append(name, value);
    form.append("file", file);
    try {
      for await (const event of transcribed(byId("speech-task").value, form, controller.signal)) this.take(event);
    } catch (error) {
      if (controller === this.controller) this.note(error.name === "AbortError" ? "Stopped." : explain(error), error.name !== "AbortError");
    }
    if (controller !== this.controller) return; // another file by now
    this.controller = null;
    this.show(false);
  }

  play(file) {
    URL.revokeObjectURL(this.address);
    this.address = URL.createObjectURL(file);
    this.player.src = this.address;
    this.player.hidden = false;
  }

  take(event) {
    if (event.type === "transcript.text.segment") {
      const { start, end, text, duration } = event;
      this.segments.push({ start, end, text });
      byId("segments").append(this.line(start, text));
      byId("speech-bar").value = duration ? Math.min(1, end / duration) : 0;
      this.note(`${clock(end)} of ${clock(duration)}`);
    } else if (event.type === "transcript.text.done") {
      this.note(this.segments.length ? `${clock(event.duration)} of ${named(event.language)}` : "No speech was found.");
    }
  }

  line(start, text) {
    const seek = () => {
      this.player.currentTime = start;
      this.player.play();
    };
    const time = el("button", { type: "button", className: "link time", title: "Play from here", onclick: seek }, clock(start));
    return el("li", {}, time, el("span", {}, text.trim()));
  }

  show(isRunning) {
    byId("speech-bar").hidden = !isRunning;
    byId("speech-bar").value = 0;
    byId("speech-stop").hidden = !isRunning;
    byId("speech-save").hidden = isRunning || !this.segments.length;
  }
}

const named = (language) => language.charAt(0).toUpperCase() + language.slice(1);

function subtitles(segments, mark) {
  const time = (seconds) => {
    const all = Math.round(seconds * 1000);
    const pad = (n, width = 2) => String(n).padStart(width, "0");
    const [hours, minutes] = [Math.floor(all / 3_600_000), Math.floor(all / 60_000) % 60];
    return `${pad(hours)}:${pad(minutes)}:${pad(Math.floor(all / 1000) % 60)}${mark}${pad(all % 1000, 3)}`;
  };
  return segments.map(({ start, end, text }, index) =>
    `${index + 1}\n${time(start)} --> ${time(end)}\n${text.trim().replace(/\s*[\r\n]\s*/g, " ").replaceAll("-->", "->")}\n\n`).join("");
}

const WRITERS = {
  txt: (segments) => segments.map(({ text }) => `${text.trim()}\n`).join(""),
  srt: (segments) => subtitles(segments, ","),
  vtt: (segments) => `WEBVTT\n\n${subtitles(segments, ".")}`,
};
