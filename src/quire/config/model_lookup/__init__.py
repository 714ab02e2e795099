"""Finds the model that a user names: a directory, a GGUF file, an alias, or a name in the hub."""
