"""`ReplyPrinter`: prints a reply to standard output as it arrives, with dimmed reasoning."""

from __future__ import annotations

import sys

from quire.cli.terminal import dim, printable
from quire.parsers.events import Content, Event, Reasoning


class ReplyPrinter:
    """Prints one reply.

    On a terminal, reasoning is grey and a blank line follows it. Otherwise it is put between
    `<think>` and `</think>`, so that programs can separate it from the answer.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_reasoning = False
        self._skips_breaks = False

    def show(self, event: Event) -> None:
        """Print the next piece."""
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
        """Finish the output: the reply is complete or was stopped."""
        self._end_reasoning()
        self._write("\n")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._is_reasoning, self._skips_breaks = False, True
            self._write("\n\n" if self._is_terminal else "\n</think>\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
