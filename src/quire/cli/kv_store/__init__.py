"""Shared code of the `quire kv` commands and of `quire explain`."""
