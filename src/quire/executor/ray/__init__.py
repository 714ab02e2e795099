"""Ranks whose machines Ray chooses, and whose processes Ray starts."""
