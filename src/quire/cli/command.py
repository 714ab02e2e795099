"""`Command`: the place of a command, which is imported when the command runs.

A command is two functions: `NAME_options(parser)` declares its options, and `NAME(args)` does the
work and returns the exit code. A module with one command may call them `configure` and `execute`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse

    from quire.config.command_line.parser import Parser


@dataclass(frozen=True, slots=True)
class Command:
    """One command; its module is imported only when the command runs."""

    name: str
    place: str
    """Module among the commands, or its whole name; after a colon its function or group."""
    summary: str

    def load(self) -> Action | Group:
        """Import the command's module."""
        from inspect import getdoc

        place, _, name = self.place.partition(":")
        is_command = not place.startswith("quire.")
        module = import_module(f"quire.cli.commands.{place}" if is_command else place)
        if not name:
            return Action(module.__doc__ or "", module.configure, module.execute)
        found = getattr(module, name)
        if isinstance(found, Group):
            return found
        return Action(getdoc(found) or "", getattr(module, f"{name}_options"), found)


class Action(NamedTuple):
    """The action of a command: its help text, its options and its function."""

    about: str
    configure: Callable[[Parser], object]
    execute: Callable[[argparse.Namespace], int]


class Group(NamedTuple):
    """Commands below one name."""

    about: str
    commands: tuple[Command, ...]
