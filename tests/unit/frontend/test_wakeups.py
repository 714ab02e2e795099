"""Readers of outputs are woken in batches, so that other callbacks run in between."""

from __future__ import annotations

import asyncio

from quire.frontend.online import wakeups
from quire.frontend.online.wakeups import Wakeups


def test_all_are_woken_and_others_run_in_between() -> None:
    async def run() -> list[int]:
        subject = Wakeups()
        events = [asyncio.Event() for _ in range(5 * wakeups._BATCH)]
        for event in events:
            subject.wake(event)
        counts = []
        while not all(event.is_set() for event in events):
            counts.append(sum(event.is_set() for event in events))
            await asyncio.sleep(0)
        return counts

    assert asyncio.run(run()) == [wakeups._BATCH * turn for turn in (1, 2, 3, 4)]


def test_few_are_woken_at_once() -> None:
    async def run() -> list[bool]:
        subject = Wakeups()
        seen = []
        for _ in range(3):
            events = [asyncio.Event() for _ in range(wakeups._BATCH)]
            for event in events:
                subject.wake(event)
            seen.append(all(event.is_set() for event in events))
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(run()) == [True] * 3


def test_one_that_waits_already_is_woken_once() -> None:
    async def run() -> bool:
        subject = Wakeups()
        event = asyncio.Event()
        for _ in range(wakeups._BATCH):
            subject.wake(asyncio.Event())
        subject.wake(event)
        subject.wake(event)
        await asyncio.wait_for(event.wait(), 10)
        event.clear()
        for _ in range(3):
            await asyncio.sleep(0)
        return event.is_set()

    assert asyncio.run(run()) is False


def test_a_new_loop_begins_anew() -> None:
    """A turn that was left on a loop that stopped does not hold up the next loop's readers."""
    subject = Wakeups()

    async def leave() -> None:
        for _ in range(wakeups._BATCH + 1):
            subject.wake(asyncio.Event())

    async def use() -> None:
        events = [asyncio.Event() for _ in range(2 * wakeups._BATCH)]
        for event in events:
            subject.wake(event)
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 10)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    subject.clear()
    asyncio.run(use())
