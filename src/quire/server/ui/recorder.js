// Recordings from the microphone as files. Short ones become WAV, which the server reads without any
// further package; long ones stay as the browser has compressed them.

import { byId } from "./dom.js";

const RATE = 16_000;
const MAX_WAV_S = 600;
const TYPES = ["audio/webm;codecs=opus", "audio/mp4", "audio/ogg;codecs=opus"];
const START = { label: "Record", title: "Record with the microphone" };
const STOP = { label: "Stop recording", title: "Stop recording" };

/** Browsers give the microphone to pages of https and localhost alone. */
export const mayRecord = () => Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

/** Makes a button record: the first press starts, the second one stops. */
export class Recorder {
  /** `onFile(file)` takes what was recorded, `onNote(text, isError)` what happens meanwhile. */
  constructor(id, onFile, onNote) {
    Object.assign(this, { button: byId(id), onFile, onNote, recorder: null, timer: 0, isAsking: false });
    this.show(START);
    this.button.addEventListener("click", () => (this.recorder ? this.stop() : this.start()));
  }

  get isOn() {
    return this.recorder !== null;
  }

  async start() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      this.record(stream);
    } catch (error) {
      const isDenied = error.name === "NotAllowedError";
      this.onNote(isDenied ? "The browser does not let this page use the microphone." : `Nothing was recorded: ${error.message}`, true);
    } finally {
      this.isAsking = false;
    }
  }

  record(stream) {
    const mimeType = TYPES.find((type) => MediaRecorder.isTypeSupported(type));
    const pieces = [];
    const begin = Date.now();
    this.recorder = new MediaRecorder(stream, mimeType ? { mimeType } : {});
    this.recorder.addEventListener("dataavailable", ({ data }) => data.size && pieces.push(data));
    this.recorder.addEventListener("stop", () => this.finish(stream, pieces, (Date.now() - begin) / 1000));
    this.recorder.start(1000);
    this.show(STOP);
    const tell = () => this.onNote(`Recording: ${clock((Date.now() - begin) / 1000)}`);
    this.timer = setInterval(tell, 500);
    tell();
  }

  stop() {
    if (this.recorder?.state === "recording") this.recorder.stop();
  }

  async finish(stream, pieces, seconds) {
    clearInterval(this.timer);
    for (const track of stream.getTracks()) track.stop();
    const blob = new Blob(pieces, { type: this.recorder.mimeType.split(";")[0] });
    this.recorder = null;
    this.show(START);
    this.onNote("");
    if (!blob.size) return this.onNote("Nothing was recorded.", true);
    this.onFile(seconds <= MAX_WAV_S ? await asWav(blob) : named(blob));
  }

  show({ label, title }) {
    if (this.button.firstElementChild) this.button.setAttribute("aria-label", label);
    else this.button.textContent = label;
    this.button.setAttribute("aria-pressed", String(label === STOP.label));
    this.button.title = title;
  }
}

/** `1:05`, or `1:02:03` from an hour on. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const named = (blob) => new File([blob], `recording.${blob.type.split("/")[1]}`, { type: blob.type });

/** The recording as a WAV file of 16 kHz; as it is, if the browser cannot decode what it recorded. */
async function asWav(blob) {
  const context = new AudioContext();
  try {
    const decoded = await context.decodeAudioData(await blob.arrayBuffer());
    const offline = new OfflineAudioContext(1, Math.max(1, Math.ceil(decoded.duration * RATE)), RATE);
    const source = new AudioBufferSourceNode(offline, { buffer: decoded });
    source.connect(offline.destination);
    source.start();
    return wavOf((await offline.startRendering()).getChannelData(0));
  } catch {
    return named(blob);
  } finally {
    context.close();
  }
}

function wavOf(samples) {
  const size = 2 * samples.length;
  const view = new DataView(new ArrayBuffer(44 + size));
  const write = (at, text) => [...text].forEach((one, i) => view.setUint8(at + i, one.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, size, true);
  samples.forEach((one, i) => view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, one))), true));
  return new File([view], "recording.wav", { type: "audio/wav" });
}
