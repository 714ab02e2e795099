"""Requests in, outputs out: validation, text, streams, `LLMEngine` and `AsyncLLM`."""
