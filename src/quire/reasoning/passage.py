"""`ReasoningPassage`: follows the tokens of a reply in and out of its reasoning."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from quire.reasoning.marks import ReasoningTokens


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
