"""Talking to a model at the terminal: an engine in this process, or a server."""
