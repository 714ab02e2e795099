"""Whether the text of a prompt ends within reasoning that the reply goes on with."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL_TOKEN = re.compile(r"<[|｜][^<>|｜]{1,60}[|｜]>")
_TURN_MARKS = (
    "[/INST]", "[/SYSTEM_PROMPT]", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>",
    "]~b]", "[e~[", "<seed:bos>", "<seed:eos>", "<assistant>", "<extra_id_1>", "<SPECIAL_11>",
)  # fmt: skip
"""Of templates whose marks of turns are not written like special tokens."""
_WINDOW = 1024
_LONGEST_MARK = 64
"""Characters; of special tokens and turn marks."""


def mark_at_end(prompt: str, begins: tuple[str, ...], ends: tuple[str, ...]) -> bool | None:
    """Whether the prompt ends with a begin (True) or an end of reasoning (False), apart from white
    space; None: with neither."""
    tail = prompt[-_WINDOW:].rstrip()
    if tail.endswith(begins):
        return True
    return False if tail.endswith(ends) else None


def last_mark(prompt: str, begins: tuple[str, ...], ends: tuple[str, ...]) -> bool | None:
    """Whether the last mark in the prompt is a begin (True) or an end of reasoning (False). None:
    the turn that the prompt ends in has neither.

    A turn's mark or any other special token between these tags and the end of the prompt means that
    they belong to an earlier turn, or to what a user wrote. The prompt is read from its end, up to
    the first mark found.
    """
    longest = max(_LONGEST_MARK, *(len(tag) for tag in (*begins, *ends)))
    high = len(prompt)
    while high > 0:
        low = max(0, high - _WINDOW)
        text = prompt[low : high + longest]
        begin, end = _last(text, begins), _last(text, ends)
        other = _last(text, _TURN_MARKS)
        for found in _SPECIAL_TOKEN.finditer(text):
            other = max(other, found.end())
        last = max(begin, end, other)
        if last >= 0:
            return None if last > max(begin, end) else begin > end
        high = low
    return None


def _last(text: str, marks: Iterable[str]) -> int:
    """Where the last of these marks ends; -1 if there is none."""
    places = ((text.rfind(mark), mark) for mark in marks)
    return max((at + len(mark) for at, mark in places if at >= 0), default=-1)
