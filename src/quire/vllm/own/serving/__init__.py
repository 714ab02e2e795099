"""Parts of vLLM for programs with their own server."""
