"""Writes checkpoints with an adapter in their weights."""
