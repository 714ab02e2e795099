"""What programs with a server of their own take from vLLM."""
