"""Terminal functions of the interactive commands: line editing, Ctrl+C, colour.

Owns the process's SIGINT handler while a generation runs. Does not depend on models.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from quire.log import get_logger
from quire.log.writer import printable

_HISTORY_LINES = 2000
_QUOTES = '"""'


class StopOnInterrupt:
    """The first Ctrl+C requests a generation to stop, between two engine steps.

    The handler only sets `requested`, because an exception inside an engine step would leave the
    engine in an inconsistent state. A second Ctrl+C raises KeyboardInterrupt. Main thread only.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> StopOnInterrupt:
        self.requested = False
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def is_interactive() -> bool:
    """True if standard input and output are terminals. A pipe gets plain text without prompts."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def quiet_log() -> None:
    """Set the log level to warnings, unless QUIRE_LOG_LEVEL is set."""
    if "QUIRE_LOG_LEVEL" not in os.environ:
        get_logger("quire").setLevel(logging.WARNING)


def dim(text: str) -> str:
    """Grey text on a terminal, unless NO_COLOR is set; unchanged otherwise."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[2m{text}\x1b[0m"


def say_dim(text: str, *, end: str = "\n") -> None:
    """Print a text in grey."""
    print(dim(printable(text)), end=end)


def read_line(prompt: str) -> str | None:
    """Read one message from the user; None at the end of input (Ctrl+D).

    A trailing backslash continues the message on the next line. If there is a prompt, a message may
    also span many lines between two marks of three double quotes.
    """
    lines: list[str] = []
    try:
        line = input(prompt)
        if prompt and line.lstrip().startswith(_QUOTES):
            return _read_quoted(line.lstrip().removeprefix(_QUOTES))
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = input("… ")
    except EOFError:
        return "\n".join(lines) if lines else None
    return "\n".join([*lines, line])


def ask(question: str) -> str | None:
    """The answer to a question, which the history does not keep; None after Ctrl+C or Ctrl+D."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    readline = sys.modules.get("readline")
    if readline is not None:
        readline.set_auto_history(False)
    try:
        return input(question)
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    finally:
        signal.signal(signal.SIGINT, before)
        if readline is not None:
            readline.set_auto_history(True)


def _read_quoted(line: str) -> str:
    """Read lines up to the one that ends with the mark, or up to the end of input."""
    lines = []
    try:
        while not line.rstrip().endswith(_QUOTES):
            lines.append(line)
            line = input("… ")
        lines.append(line.rstrip().removesuffix(_QUOTES))
    except EOFError:
        print()
    return "\n".join(lines).strip("\n")


class LineEditor:
    """Line editing with the arrow keys, completion with the Tab key, and a history file."""

    def __init__(self, name: str, completions: Callable[[str], list[str]]) -> None:
        """`completions` returns the whole lines to which a partial line can be completed."""
        self._completions = completions
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._path = Path(state) / "quire" / f"{name}_history"

    def __enter__(self) -> LineEditor:
        try:
            import readline
        except ImportError:  # Python was built without readline, so plain input is used
            return self
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer_delims("")
        readline.set_completer(self._complete)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        try:
            readline.read_history_file(self._path)
        except OSError:
            return self  # the history file does not exist or cannot be read
        return self

    def _complete(self, line: str, number: int) -> str | None:
        """The completion of this number, or None after the last one; called by readline."""
        found = self._completions(line)
        return found[number] if number < len(found) else None

    def __exit__(self, *raised: object) -> None:
        try:
            import readline

            readline.set_completer(None)
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(self._path)
            self._path.chmod(0o600)
        except (ImportError, OSError):
            return  # without a writable directory, no history is kept
