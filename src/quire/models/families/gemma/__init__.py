"""Gemma: 1 to 3, 3n and 4."""
