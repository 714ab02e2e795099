"""Formats of tool calls of families of models: one file per syntax. In `json/`, arguments are JSON
as the model writes them."""
