"""Decoders of the block types of GGUF files."""
