"""Formats whose calls are JSON objects or have JSON objects as arguments."""
