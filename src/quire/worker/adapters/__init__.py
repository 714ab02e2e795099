"""Adapters and given rows on the worker's side."""
