"""Sharing one engine between threads without a server: turns, waiting, Ctrl+C."""
