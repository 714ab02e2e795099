"""Detects whether the text of a prompt ends within reasoning that the reply continues."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL_TOKEN = re.compile(r"<[|｜][^<>|｜]{1,60}[|｜]>")
_TURN_MARKS = (
    "[/INST]", "[/SYSTEM_PROMPT]", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>",
    "]~b]", "[e~[", "<seed:bos>", "<seed:eos>", "<assistant>", "<extra_id_1>", "<SPECIAL_11>",
)  # fmt: skip
"""Turn marks of templates that do not write them like special tokens."""
_WINDOW = 1024
_LONGEST_MARK = 64
"""Maximum length of special tokens and turn marks, in characters."""


def mark_at_end(prompt: str, begins: tuple[str, ...], ends: tuple[str, ...]) -> bool | None:
    """Whether the prompt, without trailing white space, ends with a begin mark (True), an end mark
    (False), or neither (None)."""
    tail = prompt[-_WINDOW:].rstrip()
    if tail.endswith(begins):
        return True
    return False if tail.endswith(ends) else None


def last_mark(prompt: str, begins: tuple[str, ...], ends: tuple[str, ...]) -> bool | None:
    """Whether the last reasoning mark in the prompt is a begin (True) or an end (False). None: the
    last turn of the prompt has neither.

    If a turn mark or another special token comes after the last reasoning mark, that mark belongs
    to an earlier turn or to text of a user. The prompt is searched from its end, up to the first
    mark found.
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
    """The position after the last of these marks; -1 if there is none."""
    places = ((text.rfind(mark), mark) for mark in marks)
    return max((at + len(mark) for at, mark in places if at >= 0), default=-1)
