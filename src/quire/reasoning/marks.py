"""The marks of reasoning, as texts and as tokens; `ReasoningPassage`: follows the tokens of a reply
in and out of its reasoning."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import msgspec

_MOST_SPACE = 2
"""Tokens of white space that a template writes after the end."""


class ReasoningMarks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Marks of reasoning, as texts."""

    begin: str
    end: str
    is_open: bool | None = None
    """Whether the prompt ends within the reasoning; None: the marks in its tokens tell."""
    forced_end: str = ""
    """Text that is put at the end of a budget; it ends with `end`. Empty: `end`."""
    is_in_grammar: bool = False
    """Whether the grammar of the request is one of the whole reply, with the reasoning in it."""


class ReasoningTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Marks of reasoning, as tokens, for one prompt."""

    begin: list[int]
    end: list[int]
    forced_end: list[int]
    opened_at: int | None = None
    """Number of the prompt's tokens before the reasoning within which it ends; None: it does not
    end within reasoning."""
    is_in_grammar: bool = False
    """Whether the grammar of the request is one of the whole reply, with the reasoning in it."""
    is_closed: bool = False
    """Whether the prompt ends with an end of reasoning, so that none begins any more."""

    @classmethod
    def of(
        cls, marks: ReasoningMarks, prompt: Sequence[int], encode: Callable[[str], list[int]]
    ) -> ReasoningTokens:
        """`encode` gives the tokens of a text; without tokens of one mark there are none."""
        begin, end = encode(marks.begin), encode(marks.end)
        if not begin or not end:
            return cls([], [], [])
        lead = marks.forced_end.removesuffix(marks.end)
        begin_at, end_at = _last(prompt, begin), _last(prompt, end)
        opened_at = begin_at if begin_at is not None and (end_at or 0) < begin_at else None
        is_closed = end_at is not None and len(prompt) - end_at <= _MOST_SPACE
        if marks.is_open is False:
            opened_at = None
        elif marks.is_open and opened_at is None:
            opened_at = len(prompt)
        forced_end = [*(encode(lead) if lead else ()), *end]
        return cls(begin, end, forced_end, opened_at, marks.is_in_grammar, is_closed)


def _last(tokens: Sequence[int], mark: Sequence[int]) -> int | None:
    """End of the last of these marks among the tokens."""
    size = len(mark)
    for begin in range(len(tokens) - size, -1, -1):
        if tokens[begin] == mark[0] and list(tokens[begin : begin + size]) == list(mark):
            return begin + size
    return None


class ReasoningPassage:
    """Position of the last token with respect to the reasoning. A function of the request's tokens
    alone."""

    __slots__ = ("_longest", "_num_tokens", "_opened_at", "_tail", "marks")

    def __init__(
        self, marks: ReasoningTokens, token_ids: Sequence[int], num_prompt_tokens: int
    ) -> None:
        """`token_ids`: the prompt, and what was generated already."""
        self.marks = marks
        self._longest = max(len(marks.begin), len(marks.end), len(marks.forced_end))
        self._num_tokens = num_prompt_tokens
        self._opened_at = marks.opened_at
        self._tail = list(token_ids[max(0, num_prompt_tokens - self._longest) : num_prompt_tokens])
        self.extend(token_ids[num_prompt_tokens:])

    def fork(self) -> ReasoningPassage:
        """A passage with the same tokens, which goes on by itself."""
        twin = copy.copy(self)
        twin._tail = self._tail.copy()
        return twin

    @property
    def is_open(self) -> bool:
        """Whether the next token is within the reasoning, or is its end."""
        return self._opened_at is not None

    def extend(self, token_ids: Iterable[int]) -> None:
        """The next tokens of the reply."""
        for token_id in token_ids:
            self._num_tokens += 1
            self._tail.append(token_id)
            del self._tail[: -self._longest]
            if self._ends_with(self.marks.end):
                self._opened_at = None
            elif self._ends_with(self.marks.begin):
                self._opened_at = self._num_tokens

    def forced(self, budget: int) -> int | None:
        """The token that has to come next, since the reasoning has as many tokens as `budget` or
        more, those of the prompt included; None: any may come."""
        if self._opened_at is None or self._num_tokens - self._opened_at < budget:
            return None
        end = self.marks.forced_end
        num_there = next(
            (count for count in range(len(end) - 1, 0, -1) if self._ends_with(end[:count])), 0
        )
        return end[num_there]

    def _ends_with(self, mark: list[int]) -> bool:
        return self._tail[-len(mark) :] == mark
