// The text of a file that is attached to a message: texts of all kinds, and PDF by pdf.js. A file is
// read here and goes nowhere else; pdf.js is loaded with the first PDF.

export const MAX_CHARS = 2_000_000; // of a file
const MAX_TEXT_BYTES = 8 * 2 ** 20;
const MAX_PDF_BYTES = 64 * 2 ** 20;
const MAX_PDF_MS = 60_000;

/** A file as a message has it, {name, type, text}. Throws an Error with a sentence for the user. */
export async function attachmentOf(file) {
  const name = cleanName(file.name);
  if (file.size > MAX_PDF_BYTES) throw tooLarge(name, file.size, MAX_PDF_BYTES);
  const head = new Uint8Array(await file.slice(0, 5).arrayBuffer());
  const isPdf = String.fromCharCode(...head) === "%PDF-";
  if (!isPdf && file.size > MAX_TEXT_BYTES) throw tooLarge(name, file.size, MAX_TEXT_BYTES);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = isPdf ? await pdfText(bytes, name) : decoded(bytes);
  if (text === null) throw new Error(`“${name}” is not a text, an image or a PDF: binary files cannot be attached.`);
  if (!text.trim()) throw new Error(isPdf ? `“${name}” has no text: it may be a scan.` : `“${name}” is empty.`);
  if (text.length > MAX_CHARS) throw new Error(`“${name}” has more than ${MAX_CHARS.toLocaleString()} characters of text.`);
  return { name, type: isPdf ? "application/pdf" : file.type.slice(0, 100) || "text/plain", text };
}

/** `12 KB`: the size of a text or a file. */
export function sizeOf(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** The attachments as a part of a prompt: each with its name, between marks that it does not have. */
export function promptOf({ attachments = [], content }) {
  const files = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).slice(0, 10_000).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File “${cleanName(name)}”:\n${fence}\n${text}\n${fence}`;
  });
  return [...files, ...(content ? [content] : [])].join("\n\n");
}

const cleanName = (name) => name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ").slice(0, 200) || "file";

const tooLarge = (name, size, limit) =>
  new Error(`“${name}” has ${sizeOf(size)}; a file of its kind may have ${sizeOf(limit)}.`);

// UTF-8, UTF-16 with its mark, or else what old programs write on Windows. Null: not a text.
function decoded(bytes) {
  const isLittle = bytes[0] === 0xff && bytes[1] === 0xfe;
  const isBig = bytes[0] === 0xfe && bytes[1] === 0xff;
  let text;
  try {
    const form = isLittle ? "utf-16le" : isBig ? "utf-16be" : "utf-8";
    text = new TextDecoder(form, { fatal: true }).decode(bytes);
  } catch {
    text = new TextDecoder("windows-1252").decode(bytes);
  }
  return /[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text) ? null : text;
}

/** The text of a PDF. Its worker is ended afterwards, also if it is not ready in time. */
async function pdfText(bytes, name) {
  const { getDocument, PDFWorker } = await import("./pdf/pdf.min.mjs");
  const port = new Worker(workerAddress(), { type: "module" });
  let timer;
  const isLate = new Promise((_, reject) => {
    const error = new Error(`The text of “${name}” was not found within ${MAX_PDF_MS / 1000} s.`);
    timer = setTimeout(() => reject(error), MAX_PDF_MS);
  });
  const worker = PDFWorker.create({ port });
  const options = { data: bytes, worker, verbosity: 0, disableFontFace: true, useWasm: false, stopAtErrors: false };
  const task = getDocument(options);
  try {
    return await Promise.race([isLate, task.promise.then(pagesOf)]);
  } catch (error) {
    if (error.name === "PasswordException") throw new Error(`“${name}” is protected by a password.`);
    if (error.name === "Error") throw error;
    throw new Error(`“${name}” cannot be read as a PDF: ${String(error.message).slice(0, 200)}`);
  } finally {
    clearTimeout(timer);
    port.terminate();
    task.destroy().catch(() => {});
  }
}

async function pagesOf(pdf) {
  let text = "";
  for (let number = 1; number <= pdf.numPages && text.length <= MAX_CHARS; number += 1) {
    const reader = (await pdf.getPage(number)).streamTextContent().getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || text.length > MAX_CHARS) break;
      for (const { str = "", hasEOL } of value.items) text += hasEOL ? `${str}\n` : str;
    }
    text = `${text.trimEnd()}\n\n`;
  }
  return text.trim();
}

// A policy that gives this address alone.
function workerAddress() {
  const address = new URL("pdf/pdf.worker.min.mjs", import.meta.url).href;
  if (!globalThis.trustedTypes) return address;
  policy ??= trustedTypes.createPolicy("quire-pdf", { createScriptURL: () => address });
  return policy.createScriptURL("");
}

let policy = null;
