"""Rules that vLLM's parser classes apply to their model families."""
