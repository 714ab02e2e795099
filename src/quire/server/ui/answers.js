// An answer while it is written: what a stream adds to it, its speed, and the text of a failure.

const GROWING = ["content", "reasoning", "calls"];

/**
 * The record of an answer that begins, stored next to its conversation until it ends. `response`:
 * the id by which the server keeps it; null: it is lost when the connection ends. `base`: what it
 * goes on with.
 */
export function newAnswer({ id, content, reasoning, calls }, conversation, response) {
  return {
    id, conversation, response, content, reasoning, calls,
    after: -1, sent: Date.now(), first: 0, last: 0, pieces: 0, usage: null, finishReason: null,
  };
}

/** What has come of an answer, as fields of its message. */
export const grown = (answer) => Object.fromEntries(GROWING.map((name) => [name, answer[name]]));

/** Adds a piece of the stream to the answer. */
export function take(answer, piece) {
  if (piece.text || piece.reasoning || piece.calls.length) {
    answer.last = Date.now();
    answer.first ||= answer.last;
    answer.pieces += 1;
  }
  answer.content += piece.text;
  answer.reasoning += piece.reasoning;
  for (const { index, id, name, arguments: more } of piece.calls) {
    let call = answer.calls.find((one) => one.index === index);
    if (!call) answer.calls.push((call = { index, id, name, arguments: "" }));
    call.arguments += more ?? "";
  }
  answer.finishReason = piece.finishReason ?? answer.finishReason;
  answer.usage = piece.usage ?? answer.usage;
}

/** The fields of the message of an answer that has ended. */
export function ended(answer, { error = null, isStopped = false } = {}) {
  const { sent, first, last, pieces, usage, finishReason, isResumed } = answer;
  const calls = answer.calls.map(({ index: _, ...call }) => call);
  const fields = { ...grown(answer), calls, finishReason };
  if (error) fields.error = error;
  if (isStopped) fields.stopped = true;
  if (!first) return fields;
  const completion = usage?.completion ?? pieces;
  const seconds = (last - first) / 1000;
  const isTimed = !isResumed && completion > 1 && seconds > 0.02; // a resumed stream comes at once
  fields.stats = {
    ttft: (first - sent) / 1000, rate: isTimed ? (completion - 1) / seconds : 0,
    completion, prompt: usage?.prompt ?? 0, cached: usage?.cached ?? 0,
  };
  return fields;
}

/** What the user reads about a failed request. */
export function explain(error) {
  if (error.status === 503) {
    const wait = error.retryAfter ? ` Try again in ${Math.ceil(error.retryAfter)} s.` : "";
    return `The server is busy. ${error.message}${wait}`;
  }
  if (error.status === 401) return "The server did not accept the API key.";
  if (/chat template/i.test(error.message)) {
    return `${error.message} In the settings, choose "Plain text, continued".`;
  }
  return error.message;
}
