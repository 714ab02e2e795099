"""Messages to a prompt, by the chat template of a model.

`renderer` is what the rest of Quire uses. A chat template is a program that came with a model:
it runs in a process of its own, `child`, which knows `rendering` and what that needs, and neither
the engine nor the server. This file stays empty, because the child imports it.
"""
