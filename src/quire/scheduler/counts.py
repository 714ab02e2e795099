"""`Counts`: what happened in the scheduler since the last snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Reset whenever `RequestStates.take_stats` copies them to a `SchedulerStats`."""

    num_preemptions: int = 0
    num_queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    num_hit_tokens: int = 0
