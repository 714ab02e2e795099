"""Parses the text that a model writes into a message: reasoning, content and tool calls."""
