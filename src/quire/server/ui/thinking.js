// Reasoning that a server leaves in the text of an answer.

/** `<think>...</think>` at the start of an answer, from servers that do not separate it. */
export function splitThinking(text) {
  const match = /^\s*<think>([\s\S]*?)(<\/think>|$)/.exec(text);
  if (!match) return { thinking: "", answer: text };
  return { thinking: match[1].trim(), answer: text.slice(match[0].length).trimStart() };
}
