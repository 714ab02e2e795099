"""`StepCosts`: what a step without prompt tokens takes, and what a prompt token adds.

Kept by `StepPacing`. Numbers only: it knows no request.
"""

from __future__ import annotations

import sys
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
_MAX_DELAY = 0.02
"""Of a step's time: what masks and further rows of some requests may add for the others."""
_ROW_PER_TOKEN = 2.0
"""What a row more takes in a step that generates, at most, for what a prompt token takes: long
pieces of prompts are computed faster."""


class StepCosts:
    """Keeps a step that generates within `max_slowdown` times what generating alone takes.

    On a CPU a step's time grows with its tokens, so a whole budget of prompt tokens would let
    everyone who generates wait for seconds. Both costs are learnt from the steps themselves.
    """

    def __init__(self, max_slowdown: float | None) -> None:
        """None: prompts have no limit."""
        self._max_slowdown = max_slowdown
        self._generating_s: deque[float] = deque(maxlen=_WINDOW)
        self._per_token_s: deque[float] = deque(maxlen=_WINDOW)
        self._masks_s: deque[float] = deque(maxlen=_WINDOW)

    def limit(self, num_delayed: int, num_others: int) -> int:
        """Most prompt tokens for a step in which `num_delayed` would wait for newcomers.

        `num_others` run or could run: where they are many more than those who would wait, they
        count for more.
        """
        if self._max_slowdown is None:
            return sys.maxsize
        weight = max(1.0, _WEIGHT_OF_OTHERS * num_others / num_delayed)
        if not self._generating_s or not self._per_token_s:
            return int(_UNKNOWN_LIMIT * weight)
        spare_s = (self._max_slowdown - 1) * median(self._generating_s) * weight
        count = int(spare_s / max(median(self._per_token_s), 1e-9))
        return max(_MIN_LIMIT, count // _PIECE * _PIECE)

    def further_rows(self, num_rows: int) -> float:
        """How many rows more, on average, make a step of `num_rows` that generates longer by no
        more than others may be delayed, together with the wait for masks.

        A row takes at most its share of such a step: what a step takes without any row is shared
        too. Where rows are few that is far more than one takes, and what prompt tokens take tells.
        """
        if not self._generating_s:
            return 0.0
        step_s = median(self._generating_s)
        row_s = step_s / num_rows
        if self._per_token_s:
            row_s = min(row_s, _ROW_PER_TOKEN * median(self._per_token_s))
        masks_s = median(self._masks_s) if self._masks_s else 0.0
        return max(0.0, _MAX_DELAY * step_s - masks_s) / max(row_s, 1e-9)

    def observe_masks(self, wait_s: float) -> None:
        """Learns how long a step has waited for masks."""
        self._masks_s.append(wait_s)

    def observe(self, duration_s: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Learns from a step that took `duration_s`."""
        if not num_prompt_tokens:
            self._generating_s.append(duration_s)
        elif num_prompt_tokens >= _MIN_LIMIT and (self._generating_s or not num_generating):
            base_s = median(self._generating_s) if num_generating else 0.0
            self._per_token_s.append(max(0.0, duration_s - base_s) / num_prompt_tokens)
