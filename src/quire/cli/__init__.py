"""The command line, `quire`. `app` selects the command; each command is a module."""

from quire.cli.app import main

__all__ = ["main"]
