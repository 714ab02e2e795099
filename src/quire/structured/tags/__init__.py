"""Structural tags: a text of literal parts, free texts, and what follows schemas."""
