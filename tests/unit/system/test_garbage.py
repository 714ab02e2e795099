"""A crowd of objects brings no full collections of garbage, and garbage is still collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from quire.system.garbage import expect_crowds, expect_imports

CROWD = 10_000
OBJECTS_EACH = 30
"""About those of an open connection."""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_a_crowd_brings_no_full_collection() -> None:
    expect_crowds()
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        crowd = [[[] for _ in range(OBJECTS_EACH)] for _ in range(CROWD)]
    finally:
        gc.callbacks.remove(note)
    assert len(crowd) == CROWD
    assert 2 not in generations
    assert 1 in generations


def test_young_garbage_is_collected() -> None:
    expect_crowds()
    garbage = weakref.ref(Node())
    kept = [[] for _ in range(2_000)]  # type: ignore[var-annotated]
    assert len(kept) == 2_000
    assert garbage() is None


def test_imports_are_not_looked_through_again_and_again() -> None:
    expect_imports()
    before = sum(stats["collections"] for stats in gc.get_stats())
    kept = [[] for _ in range(80_000)]  # type: ignore[var-annotated]
    assert len(kept) == 80_000
    assert sum(stats["collections"] for stats in gc.get_stats()) - before <= 2
