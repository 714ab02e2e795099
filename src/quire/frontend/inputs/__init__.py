"""From what a caller gives to a request that the engine core can run.

`InputProcessor.process` is the only place where prompts and parameters are checked. `PromptParser`
reads the forms of prompts, and `images` the pictures and sounds in them.
"""
