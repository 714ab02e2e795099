"""Runs reply parsers that are written for vLLM's classes, and provides these classes."""
