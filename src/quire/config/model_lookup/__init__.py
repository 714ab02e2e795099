"""Finds the model that a user names: a directory, a GGUF file, an alias, or a name in the hub.

`hub.resolve_model` is the entry. `library` lists and removes the models of this machine, and
`known` suggests names.
"""
