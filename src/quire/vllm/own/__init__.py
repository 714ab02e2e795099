"""What scripts use of vLLM besides the engine: small things under vLLM's names."""
