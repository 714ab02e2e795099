"""`ReplyPrinter`: a reply on standard output as it comes, with dimmed reasoning."""

from __future__ import annotations

import sys

from quire.cli.terminal import dim, printable
from quire.parsers.events import Content, Event, Reasoning


class ReplyPrinter:
    """Prints one reply.

    On a terminal the reasoning is grey, and a blank line follows it. Elsewhere it stands between
    `<think>` and `</think>`, so that a program can tell it from the answer.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_reasoning = False
        self._skips_breaks = False

    def show(self, event: Event) -> None:
        """Prints the next piece."""
        if isinstance(event, Reasoning):
            text = printable(event.text)
            if not self._is_reasoning:
                self._is_reasoning = True
                text = text.lstrip("\n") if self._is_terminal else f"<think>\n{text}"
            self._write(dim(text) if text else "")
        elif isinstance(event, Content):
            self._end_reasoning()
            text = printable(event.text)
            if self._skips_breaks:
                text = text.lstrip("\n")
                self._skips_breaks = not text
            self._write(text)

    def end(self) -> None:
        """The reply is over, or was stopped."""
        self._end_reasoning()
        self._write("\n")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning, self._skips_breaks = False, True
            self._write("\n\n" if self._is_terminal else "\n</think>\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
