"""The engine's front ends: they validate requests, detokenize, and stream outputs.

`offline/LLMEngine` runs on the caller's thread and `online/AsyncLLM` on an event loop. Both use
`inputs/InputProcessor`, `OutputProcessor`, and a `RequestRecord` for each request.
"""
