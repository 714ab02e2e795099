"""`prompt_rows_of_plan`: how prompts are cut where a model is computed in several stages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import isqrt

from quire.scheduler.request import Request

_STEP_ROWS = 8
"""The time that a step takes in addition to that of its rows, in rows: reading the weights, and the
calls of the ranks."""
_PIECE = 16
"""Pieces are multiples of this."""
_MOST_WAITING = 64
"""Most waiting requests that are counted."""


def prompt_rows_of_plan(
    num_stages: int, running: Iterable[Request], waiting: Iterable[Request]
) -> int:
    """The number of prompt tokens in each plan with which all stages are done soonest.

    A prompt that is computed in one plan leaves all stages but one without work; in pieces, the
    first stage computes a piece while the next one computes the piece before.

    n tokens in pieces of c take (n / c + stages - 1) * (c + `_STEP_ROWS`) on each stage: many
    pieces keep all stages busy, and few of them read the weights seldom. This is least at
    c * c = n * `_STEP_ROWS` / (stages - 1).
    """
    prompts = [one for one in running if not one.is_generating]
    prompts += islice(waiting, _MOST_WAITING)
    count = sum(one.num_tokens - one.num_cached_tokens for one in prompts)
    rows = isqrt(count * _STEP_ROWS // (num_stages - 1))
    return max(1, -(-rows // _PIECE)) * _PIECE
