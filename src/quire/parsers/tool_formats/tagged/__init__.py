"""Calls whose arguments are not plain JSON: tags, Python literals, channels."""
