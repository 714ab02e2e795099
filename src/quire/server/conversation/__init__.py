"""Conversations of any API: messages and tools, the prompt that a chat template makes of them, and
how the reply is read."""
