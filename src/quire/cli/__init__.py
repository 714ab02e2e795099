"""The command line, `quire`. `app` picks the command; each command is a module of its own."""

from quire.cli.app import main

__all__ = ["main"]
