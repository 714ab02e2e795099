"""Simulations with a KV store, and what goes into them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fake_model import Simulation

from quire.kvstore.tiers.base import Tier

WINDOWS: list[tuple[int | None, ...]] = [(None,), (10,), (None, 10), (6, None, 18)]


@contextmanager
def simulation(
    tiers: Sequence[Tier], num_blocks: int = 200, **options: object
) -> Iterator[Simulation]:
    """Closes the store at the end."""
    simulated = Simulation(num_blocks, tiers=tiers, **options)  # type: ignore[arg-type]
    assert simulated.store is not None
    try:
        yield simulated
    finally:
        simulated.store.close()


def tokens_of(seed: str, count: int) -> list[int]:
    """The same ones for the same seed, and a longer run begins with a shorter one."""
    return [random.Random(f"{seed} {place}").randrange(900) for place in range(count)]


def flush(simulated: Simulation) -> None:
    """Everything is in the tiers afterwards."""
    assert simulated.store is not None
    assert simulated.store.flush()
