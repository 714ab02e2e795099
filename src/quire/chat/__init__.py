"""Messages to a prompt, by the chat template of a model.

Callers use `renderer` or `async_renderer`. A chat template is an untrusted program that comes with
a model: it runs in a child process (`process.child`), which imports `rendering`, and neither the
engine nor the server. This file imports nothing, because the child imports it.
"""
