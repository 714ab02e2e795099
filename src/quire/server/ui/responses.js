// The Responses API: from the body of a chat request to that of a response, and from the events of a
// response to the pieces of an answer. Pure functions.

/**
 * The request for a response with the same prompt as this chat request. `mode` is `background` (it
 * goes on in the server without this page), `temporary` (it is not kept), or `kept`.
 * `continues`: the last message is an answer that the response goes on with.
 */
export function asResponse({ body }, mode, continues = false) {
  const { messages, tools, response_format: format, max_tokens: longest, ...others } = body;
  const input = messages.flatMap(itemsOf);
  if (continues) input.at(-1).status = "incomplete";
  const request = { ...others, input };
  if (longest !== undefined) request.max_output_tokens = longest;
  if (tools) request.tools = tools.map(({ type, function: one }) => ({ type, ...one }));
  if (format) request.text = { format: { type: format.type, ...format.json_schema } };
  if (mode === "background") request.background = true;
  else request.store = false;
  return { path: "v1/responses", body: { ...request, stream: true } };
}

function itemsOf({ role, content, tool_calls: calls = [], tool_call_id: callId }) {
  if (role === "tool") return [{ type: "function_call_output", call_id: callId, output: content }];
  const items = calls.map(({ id, function: { name, arguments: given } }) =>
    ({ type: "function_call", call_id: id, name, arguments: given }));
  if (content === null) return items;
  const parts = Array.isArray(content) ? content.map(partOf) : content;
  return [{ type: "message", role, content: parts }, ...items];
}

function partOf(part) {
  if (part.type === "input_audio") return part;
  if (part.type === "image_url") return { type: "input_image", image_url: part.image_url.url };
  return { type: "input_text", text: part.text };
}

const ENDS = ["response.completed", "response.incomplete", "response.failed"];

/** Whether this is the last event of a response. */
export const isEnd = (event) => ENDS.includes(event.type);

/** What an event adds to an answer, {text, reasoning, calls, finishReason, usage}; null: nothing. */
export function pieceOf(event) {
  const piece = { text: "", reasoning: "", calls: [], finishReason: null, usage: null };
  const { type, delta, item, output_index: index } = event;
  if (type === "response.output_text.delta") return { ...piece, text: delta };
  if (type === "response.reasoning_text.delta") return { ...piece, reasoning: delta };
  if (type === "response.output_item.added" && item.type === "function_call") {
    return { ...piece, calls: [{ index, id: item.call_id, name: item.name, arguments: item.arguments }] };
  }
  if (type === "response.function_call_arguments.delta") {
    return { ...piece, calls: [{ index, arguments: delta }] };
  }
  return isEnd(event) ? { ...piece, ...endOf(event.response) } : null;
}

/** The reason and the token counts of a response that has ended; the error of one that failed. */
function endOf({ status, error, usage, incomplete_details: details }) {
  const finishReason = status === "incomplete" && details?.reason === "max_output_tokens" ? "length" : "stop";
  const counts = usage && {
    completion: usage.output_tokens, prompt: usage.input_tokens,
    cached: usage.input_tokens_details?.cached_tokens ?? 0,
  };
  return { finishReason, usage: counts ?? null, error: error?.message ?? null };
}
