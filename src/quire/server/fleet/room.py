"""Which models are unloaded so that another one fits. Pure: knows names and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """What a loaded model holds."""

    name: str
    num_bytes: int
    last_used: float


def to_unload(missing_bytes: int, holdings: Iterable[Holding]) -> list[str] | None:
    """Names of the models whose memory makes up for what is missing; None: all are not enough.

    The least recently used come first. A model that turns out not to be needed, because a larger
    one was added after it, stays.
    """
    chosen, freed = list[Holding](), 0
    for holding in sorted(holdings, key=lambda one: one.last_used):
        if freed >= missing_bytes:
            break
        chosen.append(holding)
        freed += holding.num_bytes
    if freed < missing_bytes:
        return None
    for holding in reversed(chosen[:]):
        if freed - holding.num_bytes >= missing_bytes:
            chosen.remove(holding)
            freed -= holding.num_bytes
    return [holding.name for holding in chosen]
