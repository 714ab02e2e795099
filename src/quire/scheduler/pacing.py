"""`PrefillPacer`: how many prompt tokens may ride along in a step that others generate in.

Called by the scheduler; `EngineCore` tells it how long steps took. What it decides is only how
a prompt is cut into pieces, which changes no bit of any answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from statistics import median

_WINDOW = 15
"""Steps remembered of each kind; their median is not moved by a step that was interrupted."""
_UNKNOWN_LIMIT = 128
"""Until both costs are known."""
_PIECE = 8
"""Limits are multiples of this."""
_MIN_LIMIT = 16
"""Prompts always advance."""
_WEIGHT_OF_OTHERS = 0.5
"""A gap within a reply is worse than a later begin."""


class PrefillPacer:
    """Keeps a step that generates within `max_slowdown` times what generating alone takes.

    On a CPU a step's time grows with its tokens, so a whole budget of prompt tokens would let
    everyone who generates wait for seconds. Learns the time of a step without prompt tokens, and
    what a prompt token adds, from the steps themselves.

    A prompt is held back for those alone whose reply ran before it came. Requests that came
    together all wait for the last of their prompts, as they would in any other order, and then
    generate together, which is what makes a burst, or a queue under overload, fast.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._max_slowdown = max_slowdown
        self._generating_s: deque[float] = deque(maxlen=_WINDOW)
        self._per_token_s: deque[float] = deque(maxlen=_WINDOW)

    def limit(self, num_delayed: int, num_others: int) -> int:
        """Most prompt tokens for a step in which `num_delayed` would wait for newcomers.

        `num_others` run or could run: where they are many more than those who would wait, they
        count for more.
        """
        weight = max(1.0, _WEIGHT_OF_OTHERS * num_others / num_delayed)
        if not self._generating_s or not self._per_token_s:
            return int(_UNKNOWN_LIMIT * weight)
        spare_s = (self._max_slowdown - 1) * median(self._generating_s) * weight
        count = int(spare_s / max(median(self._per_token_s), 1e-9))
        return max(_MIN_LIMIT, count // _PIECE * _PIECE)

    def observe(self, duration_s: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Learns from a step that took `duration_s`."""
        if not num_prompt_tokens:
            self._generating_s.append(duration_s)
        elif num_prompt_tokens >= _MIN_LIMIT and (self._generating_s or not num_generating):
            base_s = median(self._generating_s) if num_generating else 0.0
            self._per_token_s.append(max(0.0, duration_s - base_s) / num_prompt_tokens)


class StepBudget:
    """The prompt tokens of one step, handed out piece by piece."""

    def __init__(
        self,
        num_tokens: int,
        max_chunk: int = 0,
        pacer: PrefillPacer | None = None,
        began: list[int] | None = None,
        num_waiting: int = 0,
    ) -> None:
        """`num_tokens` in all, at most `max_chunk` (0: no bound) to one request.

        With a pacer: `began` holds the `began_after` of each request that generates, in any
        order; `num_waiting` wait for a first token and could have it.
        """
        self._num_left = num_tokens
        self._num_spent = 0
        self._max_chunk = max_chunk or num_tokens
        self._pacer = pacer
        self._began = sorted(began or [])
        self._num_requests = len(self._began) + num_waiting

    def __bool__(self) -> bool:
        return self._num_left > 0

    def chunk(self, number: int, count: int) -> int:
        """How many of its `count` missing tokens the arrival with this number may compute now."""
        count = min(count, self._max_chunk, self._num_left)
        num_delayed = bisect_right(self._began, number)
        if self._pacer is not None and num_delayed:
            limit = self._pacer.limit(num_delayed, self._num_requests - num_delayed)
            count = min(count, limit - self._num_spent)
        return count

    def spend(self, count: int) -> None:
        """Takes tokens that a request was planned with."""
        self._num_left -= count
        self._num_spent += count
