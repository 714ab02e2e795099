"""Work is begun a little at a time, so that other callbacks run in between."""

from __future__ import annotations

import asyncio

from quire.system import turn_queue
from quire.system.turn_queue import TurnQueue

MOST = 16


class Work:
    """A clock of processor time, and calls that take some of it later in the same turn."""

    def __init__(self, each_s: float) -> None:
        self.now, self.num_begun = 0.0, 0
        self._each_s = each_s

    def begin(self) -> None:
        self.num_begun += 1
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.now += self._each_s


async def _counts(work: Work, num_calls: int) -> list[int]:
    """How many calls each turn made."""
    queue, counts = TurnQueue(MOST, lambda: work.now), []
    for number in range(num_calls):
        queue.add(lambda _=number: work.begin())
    before = 0
    while before < num_calls:
        counts.append(work.num_begun - before)
        before = work.num_begun
        await asyncio.sleep(0)
    return [one for one in counts if one]


def test_all_calls_are_made_and_others_run_in_between() -> None:
    assert asyncio.run(_counts(Work(0.0), 4 * MOST)) == [MOST] * 4


def test_after_a_long_turn_there_are_fewer() -> None:
    counts = asyncio.run(_counts(Work(turn_queue._TURN_S), 3 * MOST))
    assert counts[0] == MOST
    assert counts[-2:] == [turn_queue._FEWEST] * 2
    assert sum(counts) == 3 * MOST


async def test_few_are_made_at_once() -> None:
    queue, seen = TurnQueue(MOST), []
    for _ in range(3):
        made: list[int] = []
        for number in range(MOST):
            queue.add(lambda number=number, made=made: made.append(number))
        seen.append(len(made))
        for _ in range(3):
            await asyncio.sleep(0)
    assert seen == [MOST] * 3


async def test_one_that_waits_already_is_made_once() -> None:
    queue = TurnQueue(MOST)
    event = asyncio.Event()
    for _ in range(MOST):
        queue.add(asyncio.Event().set)
    queue.add(event.set)
    queue.add(event.set)
    await asyncio.wait_for(event.wait(), 60)
    event.clear()
    for _ in range(3):
        await asyncio.sleep(0)
    assert event.is_set() is False


def test_a_new_loop_begins_anew() -> None:
    """A turn that was left on a loop that stopped does not hold up the next loop's calls."""
    queue = TurnQueue(MOST)

    async def leave() -> None:
        for _ in range(MOST + 1):
            queue.add(asyncio.Event().set)

    async def use() -> None:
        events = [asyncio.Event() for _ in range(2 * MOST)]
        for event in events:
            queue.add(event.set)
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 60)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    queue.clear()
    asyncio.run(use())
