"""`StepCosts`: how long a step without prompt tokens takes, and how much a prompt token adds.

Kept by `StepPacing`. Knows durations and counts, but no requests.
"""

from __future__ import annotations

import sys
from collections import deque
from statistics import median

_WINDOW = 15
"""Number of durations kept of each kind. Their median ignores a step that was interrupted."""
_UNKNOWN_LIMIT = 128
"""Limit on prompt tokens until both costs are known."""
_PIECE = 8
"""Limits are multiples of this."""
_MIN_LIMIT = 16
"""Lower bound of limits, so that prompts always advance."""
_WEIGHT_OF_OTHERS = 0.5
"""Below 1, because a gap within a reply is worse than a later first token."""


class StepCosts:
    """Keeps the time of a generating step within `max_slowdown` times that of generating alone.

    On a CPU the time of a step grows with its tokens, so a whole budget of prompt tokens would let
    all generating requests wait for seconds. Both costs are measured on the steps themselves.
    """

    def __init__(self, max_slowdown: float | None) -> None:
        """`max_slowdown`: None: prompt tokens are not limited."""
        self._max_slowdown = max_slowdown
        self._generating_s: deque[float] = deque(maxlen=_WINDOW)
        self._per_token_s: deque[float] = deque(maxlen=_WINDOW)

    @property
    def generating_s(self) -> float:
        """Seconds of a step without prompt tokens; 0: not known yet."""
        return median(self._generating_s) if self._generating_s else 0.0

    def limit(self, num_delayed: int, num_others: int) -> int:
        """Most prompt tokens for a step that delays `num_delayed` generating requests.

        `num_others`: further requests that run or could run. If they are many more than the
        delayed ones, the limit is higher.
        """
        if self._max_slowdown is None:
            return sys.maxsize
        weight = max(1.0, _WEIGHT_OF_OTHERS * num_others / num_delayed)
        if not self._generating_s or not self._per_token_s:
            return int(_UNKNOWN_LIMIT * weight)
        spare_s = (self._max_slowdown - 1) * median(self._generating_s) * weight
        count = int(spare_s / max(median(self._per_token_s), 1e-9))
        return max(_MIN_LIMIT, count // _PIECE * _PIECE)

    def observe(self, duration_s: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Records the duration of a step."""
        if not num_prompt_tokens:
            self._generating_s.append(duration_s)
        elif num_prompt_tokens >= _MIN_LIMIT and (self._generating_s or not num_generating):
            base_s = median(self._generating_s) if num_generating else 0.0
            self._per_token_s.append(max(0.0, duration_s - base_s) / num_prompt_tokens)
