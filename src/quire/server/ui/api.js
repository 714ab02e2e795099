// The HTTP client: models, streamed answers, the live view. Paths are relative to the
// page, so a path prefix of a reverse proxy works.

import { loadKey, saveKey } from "./store.js";

/** An error reply or a broken stream. `status` is 0 without a reply. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const NO_DEFAULTS = { model: {}, chat: {} };

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

async function refusal(response) {
  let message = "";
  try {
    const error = (await response.json()).error;
    message = typeof error === "string" ? error : (error?.message ?? "");
  } catch {
    message = response.statusText;
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  return new ApiError(
    message || `The server answered ${response.status}.`,
    response.status,
    Number.isFinite(wait) ? wait : null,
  );
}

/** The served models and adapters: {id, base, maxLength, status}. */
export async function listModels() {
  const reply = await (await call("v1/models", {}, !isDeclined)).json();
  return reply.data.map((model) => ({
    id: String(model.id), base: model.parent ?? null, maxLength: model.max_model_len,
    status: model.status ?? null,
  }));
}

/** Loads or unloads a model; `action` is `load` or `unload`. */
export async function changeModel(model, action) {
  await call(`v1/models/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model }),
  });
}

/**
 * What the page needs to know of a model, {isDemo, takesImages, isRanker, sampling}: `sampling.model`
 * are the sampling defaults of the model, `sampling.chat` those that a front end for people adds.
 */
export async function modelFacts(model) {
  try {
    const path = `quire/live?model=${encodeURIComponent(model)}`;
    const facts = await (await call(path, {}, !isDeclined)).json();
    const { state, is_demo: isDemo, takes_images: takesImages, scoring, sampling } = facts;
    if (state === "loading" && !sampling) throw new ApiError("The model is being loaded.", 503);
    return {
      isDemo: isDemo === true, takesImages: takesImages === true, isRanker: Boolean(scoring),
      sampling: sampling ?? NO_DEFAULTS,
    };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { isDemo: false, takesImages: false, isRanker: false, sampling: NO_DEFAULTS }; // another server, without this route
  }
}

/** The documents by their score for a query, the best first: {index, score}. */
export async function rank(model, query, documents) {
  const response = await call("v1/rerank", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, query, documents, return_documents: false }),
  });
  const { results } = await response.json();
  return results.map((one) => ({ index: one.index, score: one.relevance_score }));
}

/** Server-sent events of a response, parsed, until `[DONE]` or the end. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        yield data === "[DONE]" ? null : JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Streams an answer: yields {text, reasoning, calls, finishReason, usage} per event. `calls` are
 * the deltas of tool calls, as the API has them.
 * `request` is the body without `stream`. Throws ApiError, or AbortError when stopped.
 */
export async function* streamAnswer(path, request, signal) {
  const response = await call(path, {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
  });
  for await (const event of events(response)) {
    if (event === null) return;
    if (event.error) throw new ApiError(event.error.message ?? String(event.error), 500);
    const choice = event.choices?.[0];
    yield {
      text: choice?.delta?.content ?? choice?.text ?? "",
      reasoning: choice?.delta?.reasoning ?? choice?.delta?.reasoning_content ?? "",
      calls: choice?.delta?.tool_calls ?? [],
      finishReason: choice?.finish_reason ?? null,
      usage: event.usage ?? null,
    };
  }
  throw new ApiError("The stream ended before the answer did.");
}

/** Yields snapshots of a model's engine until the signal or the server ends the stream. */
export async function* liveView(model, signal) {
  const options = { signal, headers: { Accept: "text/event-stream" } };
  const path = model ? `quire/live?model=${encodeURIComponent(model)}` : "quire/live";
  const response = await call(path, options, !isDeclined);
  yield* events(response);
}
