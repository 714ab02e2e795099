"""Formats whose calls are JSON objects, or have arguments that are."""
