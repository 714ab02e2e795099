"""Front end: validation, detokenization, streams, `LLMEngine` and `AsyncLLM`."""
