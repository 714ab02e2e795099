"""From a text that a model writes to a message: reasoning, content and tool calls."""
