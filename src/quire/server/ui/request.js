// From the conversation and the settings to the body of a request. Pure functions.

import { promptOf } from "./file_text.js";
import { splitThinking } from "./thinking.js";

const COMPLETION_TOKENS = 256; // the API's default, 16, is too short
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "max_tokens", "seed"];

/**
 * The request for an answer to these messages: {path, body}. `defaults` are the sampling fields
 * that settings without a value get; the server adds the model's own. `more`: tools of servers.
 */
export function requestFor(model, settings, defaults, messages, more = []) {
  const said = messages.filter((one) => !one.error || one.content || one.calls?.length);
  const body = { model, ...defaults, ...samplingFields(settings) };
  if (settings.mode === "completion") {
    const prompt = said.map(promptOf).join("");
    return { path: "v1/completions", body: { max_tokens: COMPLETION_TOKENS, ...body, prompt } };
  }
  const system = settings.system.trim();
  const history = said.map(sentMessage);
  body.messages = system ? [{ role: "system", content: system }, ...history] : history;
  if (settings.reasoning) {
    const isOn = settings.reasoning === "on"; // templates know one name or the other
    body.chat_template_kwargs = { enable_thinking: isOn, thinking: isOn };
  }
  const tools = [...toolsOf(settings), ...more];
  if (tools.length) body.tools = tools;
  const schema = parsed(settings.schema);
  if (schema) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return { path: "v1/chat/completions", body };
}

/** Settings as request fields; empty ones are left out. */
export function samplingFields(settings) {
  const fields = {};
  for (const name of NUMBERS) {
    const value = Number(settings[name]);
    if (settings[name] !== "" && Number.isFinite(value)) fields[name] = value;
  }
  const stop = settings.stop.split("|").filter((text) => text !== "");
  if (stop.length) fields.stop = stop;
  return fields;
}

/** The tools that the settings hold, in the form of the API. */
export function toolsOf(settings) {
  const tools = parsed(settings.tools);
  return Array.isArray(tools) ? tools : [];
}

/** A tool as the API takes it, from `{name, parameters}` or the whole. Throws what is wrong. */
export function toolFrom(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  const tool = given?.function ?? given;
  if (typeof tool?.name !== "string" || tool.name === "") {
    throw new Error('A tool needs a name: {"name": "get_weather", "parameters": {…}}');
  }
  const parameters = tool.parameters ?? tool.input_schema ?? { type: "object", properties: {} };
  if (typeof parameters !== "object" || Array.isArray(parameters)) {
    throw new Error("“parameters” must be a JSON schema, an object.");
  }
  const described = tool.description ? { description: String(tool.description) } : {};
  return { type: "function", function: { name: tool.name, ...described, parameters } };
}

/** The value of a JSON text; null for an empty or broken one. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function soundPart({ url }) {
  const [, format, data] = /^data:audio\/([\w.-]*)[^,]*,(.*)$/.exec(url);
  return { type: "input_audio", input_audio: { data, format } };
}

function sentMessage(message) {
  const { role, images = [], sounds = [], calls, callId } = message;
  const content = promptOf(message);
  if (role === "tool") return { role, tool_call_id: callId, content };
  if (images.length || sounds.length) {
    const parts = [...images.map((url) => ({ type: "image_url", image_url: { url } })), ...sounds.map(soundPart)];
    return { role, content: content ? [...parts, { type: "text", text: content }] : parts };
  }
  if (role !== "assistant") return { role, content };
  const { answer } = splitThinking(content);
  if (!calls?.length) return { role, content: answer };
  const toolCalls = calls.map(({ id, name, arguments: given }) => ({
    id, type: "function", function: { name, arguments: given },
  }));
  return { role, content: answer || null, tool_calls: toolCalls };
}
