"""Where a model lies: a directory, a GGUF file, or a name in the hub."""
