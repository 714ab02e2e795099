"""llama-server's own routes: prompts with gaps, plain completions, and the state of the server."""
