"""Checks of reply formats: the same message however a text is divided, and the expected one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.parsers.events import Event, Message
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.reader import TextReader

_SHORT = 60
"""Texts up to here are cut at every pair of places."""


def parsed(
    format: ReplyFormat,
    pieces: Iterable[str],
    tools: Mapping[str, Mapping[str, Any]] | None,
    *,
    is_reasoning: bool = False,
    is_cut: bool = False,
) -> list[Event]:
    """The events of a reply that arrives in these pieces."""
    parser = ReplyParser(format, tools, is_reasoning=is_reasoning)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(is_cut=is_cut)


class CountingReader(TextReader):
    """Counts the characters that are kept when text arrives, and those that are read."""

    work = 0

    def push(self, text: str) -> None:
        super().push(text)
        type(self).work += len(self.available())

    def take(self, count: int) -> str:
        type(self).work += count + 1
        return super().take(count)


def message_of(
    format: ReplyFormat,
    text: str,
    tools: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    is_reasoning: bool = False,
) -> Message:
    """The message of a text, which is checked to be the same for other divisions of it."""
    whole = Message.of(parsed(format, [text], tools, is_reasoning=is_reasoning))
    for pieces in divisions(text):
        divided = Message.of(parsed(format, pieces, tools, is_reasoning=is_reasoning))
        assert divided == whole, pieces
    return whole


def divisions(text: str) -> Iterable[Sequence[str]]:
    """Ways to cut a text: characters, one place, two places of a short one, and random ones."""
    yield list(text)
    for i in range(len(text) + 1):
        yield text[:i], text[i:]
        if len(text) <= _SHORT:
            yield from ((text[:i], text[i:j], text[j:]) for j in range(i, len(text) + 1))
    dice = random.Random(text)
    for _ in range(10):
        yield _random_pieces(text, dice)


def cut(text: str, size: int) -> list[str]:
    """Pieces of one size."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def _random_pieces(text: str, dice: random.Random) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = dice.choice((1, 1, 2, 3, 5, 8, 13))
        pieces.append(text[at : at + size])
        at += size
    return pieces
