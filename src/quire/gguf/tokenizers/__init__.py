"""Tokenizers of GGUF files: `files` writes them for a model, with parts from the other modules."""
