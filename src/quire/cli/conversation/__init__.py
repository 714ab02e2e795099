"""Conversations at the terminal, with an engine in this process or with a server."""
