// The HTTP client: streamed answers, the live view, loading of models. Paths are relative to the
// page, so a path prefix of a reverse proxy works.

import { loadKey, saveKey } from "./store.js";

/** An error reply or a broken stream. `status` is 0 without a reply, `param` the field that is wrong. */
export class ApiError extends Error {
  constructor(message, status = 0, { retryAfter = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, retryAfter, param });
  }
}

let key = loadKey();
let askForKey = null;
let asking = null;
let isDeclined = false;

/** Sets the function that opens the key dialog: async, returns {key, keep} or null. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Opens the key dialog once for all calls that got 401. */
function requestKey() {
  asking ??= askForKey()
    .then((answer) => {
      isDeclined = answer === null;
      if (isDeclined) return false;
      key = answer.key;
      saveKey(answer.key, answer.keep);
      return true;
    })
    .finally(() => (asking = null));
  return asking;
}

async function call(path, options = {}, mayAsk = true) {
  const used = key;
  const headers = { ...options.headers };
  if (used) headers.Authorization = `Bearer ${used}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  if (response.status === 401 && mayAsk && askForKey) {
    // Another call may have stored a new key in the meantime.
    if (used !== key || (await requestKey())) return call(path, options, mayAsk);
  }
  throw await refusal(response);
}

const post = (body, signal) => ({
  method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
});

async function refusal(response) {
  let message = "";
  let param = null;
  try {
    const error = (await response.json()).error;
    param = error?.param ?? null;
    message = typeof error === "string" ? error : (error?.message ?? "");
  } catch {
    message = response.statusText;
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  return new ApiError(
    message || `The server answered ${response.status}.`,
    response.status,
    { retryAfter: Number.isFinite(wait) ? wait : null, param },
  );
}

/** Loads or unloads a model; `action` is `load` or `unload`. */
export async function changeModel(model, action) {
  await call(`v1/models/${action}`, post({ model }));
}

/** The number of a text's tokens, {count, max_model_len}. */
export async function countTokens(model, prompt) {
  return (await call("tokenize", post({ model, prompt }))).json();
}

/** The documents by their score for a query, the best first: {index, score}. */
export async function rank(model, query, documents) {
  const response = await call("v1/rerank", post({ model, query, documents, return_documents: false }));
  const { results } = await response.json();
  return results.map((one) => ({ index: one.index, score: one.relevance_score }));
}

/** The events of a transcription. `task`: `transcriptions` or `translations`. */
export async function* transcribed(task, form, signal) {
  yield* events(await call(`v1/audio/${task}`, { method: "POST", body: form, signal }));
}

/** Server-sent events of a response, parsed, until `[DONE]` or the end. Throws ApiError if it breaks. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection broke.");
      });
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error && !event.type) throw new ApiError(event.error.message ?? String(event.error), 500);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Sends a request, and yields the events of its reply. */
export async function* streamed({ path, body }, signal) {
  yield* events(await call(path, post({ ...body, stream: true }, signal)));
}

const addressOf = (id) => `v1/responses/${encodeURIComponent(id)}`;

/** The events of a response after this number, also those that the page missed. */
export async function* missedEvents(id, after, signal) {
  const query = after < 0 ? "stream=true" : `stream=true&starting_after=${after}`;
  yield* events(await call(`${addressOf(id)}?${query}`, { signal }));
}

/** The state of a response, such as `in_progress` or `cancelled`. */
export async function statusOf(id, signal) {
  return (await (await call(addressOf(id), { signal })).json()).status;
}

/** Ends a response in the server. */
export const cancelResponse = (id) => call(`${addressOf(id)}/cancel`, { method: "POST" });

/** Lets the server forget a response, which the page has now. */
export const forgetResponse = (id) => call(addressOf(id), { method: "DELETE" }, false);

/** The time at which the server started, on this browser's clock. */
export async function serverStart() {
  const { uptime_s: seconds } = await (await call("quire/live")).json();
  return Date.now() - 1000 * seconds;
}

/** Yields snapshots of a model's engine until the signal or the server ends the stream. */
export async function* liveView(model, signal) {
  const options = { signal, headers: { Accept: "text/event-stream" } };
  const path = model ? `quire/live?model=${encodeURIComponent(model)}` : "quire/live";
  yield* events(await call(path, options, !isDeclined));
}
