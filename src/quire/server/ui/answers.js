// An answer's record: what a stream adds to it, its speed, and the text of a failure.

/** Adds a piece of the stream to the record. */
export function take(record, piece, clock) {
  const now = performance.now();
  if (piece.text || piece.reasoning || piece.calls.length) {
    clock.first ||= now;
    clock.last = now;
    clock.pieces += 1;
  }
  record.content += piece.text;
  record.reasoning += piece.reasoning;
  for (const delta of piece.calls) {
    record.calls[delta.index] ??= { id: delta.id, name: delta.function.name, arguments: "" };
    record.calls[delta.index].arguments += delta.function.arguments ?? "";
  }
  record.finishReason = piece.finishReason ?? record.finishReason;
  if (piece.usage) record.usage = piece.usage;
}

/** Speeds measured in the browser; token counts from the server. */
export function measure(record, clock) {
  if (!clock.first) return;
  const usage = record.usage ?? {};
  const completion = usage.completion_tokens ?? clock.pieces;
  const seconds = (clock.last - clock.first) / 1000;
  record.stats = {
    ttft: (clock.first - clock.sent) / 1000,
    rate: completion > 1 && seconds > 0.02 ? (completion - 1) / seconds : 0,
    completion,
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
  delete record.usage;
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
