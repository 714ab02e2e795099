"""`ReasoningTags`: the marks of a family's reasoning, which comes before the answer."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.tokenizer import IncrementalDetokenizer

_OWN_TEXT = re.compile(r":[^\s<>{}'\"]{1,32}>")


@dataclass(frozen=True)
class ReasoningTags:
    """Reasoning between two tags, as the first part of a reply; the answer follows.

    Without an end tag, all text after the begin tag is reasoning. A second begin tag right after
    the first is dropped, because the prompt may contain one too. So is an end tag at the reply's
    start.
    """

    begin: str
    end: str
    other_begins: tuple[str, ...] = ()
    """Alternatives to `begin`."""
    other_ends: tuple[str, ...] = ()
    """Alternatives to `end`."""
    header: str = ""
    """Optional text after the begin tag, which is not part of the reasoning."""
    is_implied: bool = False
    """Whether a reply begins within the reasoning if neither prompt nor reply has a tag. Set for
    families that always reason but whose templates do not always write the begin tag."""
    ends_at_call: bool = True
    """Whether a tool call ends the reasoning. Text that only looks like a call does not."""
    may_repeat: bool = False
    """Whether reasoning may also begin within the answer, any number of times."""
    keeps_space: bool = True
    """Whether white space before the end is part of the reasoning."""
    answer_marks: tuple[str, ...] = ()
    """Marks to drop from the answer: marks around it, and repeated end tags."""
    trims_answer: bool = False
    """Whether white space before the answer, and around `answer_marks`, is dropped."""
    is_content: bool = False
    """Whether the reasoning is passed on with its tags as part of the answer, for clients that send
    it back."""

    @property
    def begins(self) -> tuple[str, ...]:
        """All spellings of the begin."""
        return (self.begin, *self.other_begins)

    @property
    def ends(self) -> tuple[str, ...]:
        """All spellings of the end."""
        return (self.end, *self.other_ends)

    def spelled_in(self, text: str) -> ReasoningTags:
        """The tags as spelled in a chat template or a prompt: some checkpoints write `<think:1a2b>`
        and `</think:1a2b>`, with a suffix of their own."""
        stem = self.begin.removesuffix(">")
        place = text.find(f"{stem}:")
        found = None if place < 0 else _OWN_TEXT.match(text, place + len(stem))
        if self.begin in text or found is None:
            return self
        end = self.end.replace(">", found.group())
        marks = tuple(end if mark == self.end else mark for mark in self.answer_marks)
        return replace(self, begin=stem + found.group(), end=end, answer_marks=marks)

    def is_open_in(self, prompt: str, *, is_continued: bool = False) -> bool:
        """Whether a reply to this rendered prompt begins within the reasoning. `is_continued`: the
        prompt ends with text that the model continues."""
        headed = tuple(begin + self.header.rstrip() for begin in self.begins)
        find = last_mark if is_continued else mark_at_end
        is_open = find(prompt, (*self.begins, *headed), self.ends)
        return self.is_implied if is_open is None else is_open


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


class ReasoningTokenCount:
    """Counts the tokens whose text begins within the reasoning; tokens of the tags do not count.

    The spans of reasoning come from the reply's parser. The split of the tokens into pieces does
    not affect the result.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        """`detokenizer`: a new one that produces the same text as the parser gets."""
        self._detokenizer = detokenizer
        self._length = 0
        self._begins = array("q")
        """Position of each token's text, in characters."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Add more tokens of the reply."""
        for token_id in token_ids:
            self._begins.append(self._length)
            self._length += len(self._detokenizer.push((token_id,)))

    def count(self, spans: Iterable[tuple[int, int]]) -> int:
        """Number of tokens so far within these `reasoning_spans` of the parser."""
        begins = self._begins
        return sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in spans)
