"""Parsers of replies that are written for vLLM's classes: these classes, and what runs them."""
