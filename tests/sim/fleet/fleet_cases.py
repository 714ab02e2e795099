"""Runs of simulated fleets: their loads, what goes wrong in them, and what they show."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_load import Conversation, Shape, conversations
from fleet_replica import Figures
from fleet_routers import Oracle, Placed, Simple
from fleet_run import Case, Fleet, Outcome, Router

RECORD = Path(__file__).with_name("demo_model.json")
LOAD = 0.6
"""Share of the time that replicas compute if all prefixes are found."""


def recorded() -> Figures:
    """The figures of a real replica."""
    return Figures(**json.loads(RECORD.read_text()))


@dataclass(frozen=True)
class Setting:
    """A fleet and what it has to do."""

    count: int
    figures: Figures
    load: list[Conversation]
    warm_up_s: float
    """Seconds until the number of conversations is that of the rest of the time."""

    def cases(self) -> dict[str, Case]:
        """The cases, at times of this load."""
        return cases(self.warm_up_s, self.load[-1].starts_at)

    def run(self, name: str, case: Case | None = None) -> Outcome:
        """`name`: of a router."""
        case = case or Case()
        fleet = Fleet(self.count, self.figures, case, self.warm_up_s)
        random.seed(1)  # `Placement` draws replicas
        with _without_gc():
            return fleet.run(self.load, self._router(name, fleet, case))

    def _router(self, name: str, fleet: Fleet, case: Case) -> Router:
        if name == "oracle":
            return Oracle(fleet)
        if name == "placement":
            return Placed(self.count, self.figures, case.num_front_ends)
        return Simple(self.count, 2 if name == "two random" else 0)


def setting(
    count: int, capacity: float, per_replica: int, figures: Figures, seed: int = 1
) -> Setting:
    """`capacity`: blocks of all replicas, as a multiple of those of the conversations that are
    going on. `per_replica`: conversations in all, for each replica."""
    shape = Shape(num_systems=2 * count)
    new, reply = shape.tokens_of_turn
    busy_s = new * figures.prompt_token_s + reply * (figures.row_s + figures.step_s / 6)
    per_second = LOAD * count / (busy_s * shape.num_turns)
    load = conversations(shape, per_replica * count, per_second, seed)
    length_s = shape.num_turns * (shape.pause_s + 2 * reply * figures.step_s)
    num_tokens = sum(len(one.text) for one in load) / len(load) * per_second * length_s
    num_blocks = int(capacity * num_tokens / figures.block_size / count)
    longest = max(len(one.text) for one in load) // figures.block_size
    figures = replace(figures, num_blocks=max(num_blocks, 2 * longest))
    return Setting(count, figures, load, min(length_s, load[-1].starts_at / 2))


def cases(begin: float = 1.0, end: float = 2.0) -> dict[str, Case]:
    """What goes wrong between two times, by name."""
    every = [
        Case("nothing"),
        Case("tokens seen 20 ms late", stream_s=0.02),
        Case("events", has_events=True),
        Case("events 5 s late", has_events=True, events_s=5.0),
        Case("1 event of 5 lost", has_events=True, lost_share=0.2),
        Case("2 front ends", num_front_ends=2, has_events=True),
        Case("2, late, lost", num_front_ends=2, has_events=True, events_s=1.0, lost_share=0.2),
        Case("a replica goes, and returns", churn_s=min(20.0, (end - begin) / 3)),
        Case("a replica is 4 times slower", slow={1: 4.0}),
        Case("a replica stops", stops=(1, begin, (begin + end) / 2)),
    ]
    return {case.name: case for case in every}


@contextmanager
def _without_gc() -> Iterator[None]:
    """A run makes no cycles, and the collector would look through all of it again and again."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
