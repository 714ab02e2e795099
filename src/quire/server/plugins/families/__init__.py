"""What vLLM's classes of parsers take for granted of their families."""
