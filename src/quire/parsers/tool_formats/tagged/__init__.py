"""Calls whose arguments are no plain JSON: tags, literals of Python, channels."""
