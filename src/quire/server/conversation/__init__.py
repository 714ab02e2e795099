"""Conversations of any API: from messages and tools to a prompt, and how the reply is read.

`Conversation` is what a template shows, `chat_text` renders it, and `prompts` and `media_prompts`
make token ids of it. `ToolUse` says what may be called, and `ReplyPlan` how the reply is
constrained and parsed. No API is known here.
"""
