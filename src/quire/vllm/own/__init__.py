"""Parts of vLLM besides the engine that scripts use, under vLLM's names."""
