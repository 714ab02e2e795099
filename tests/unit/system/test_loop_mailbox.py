"""Calls from other threads are made in order, and never many in one turn if they take long."""

from __future__ import annotations

import asyncio
import threading

from quire.system.turn_queue import LoopMailbox


async def test_calls_of_threads_are_made_in_order() -> None:
    made: list[int] = []
    done = asyncio.Event()
    mailbox = LoopMailbox(asyncio.get_running_loop())

    def post() -> None:
        for number in range(2000):
            mailbox.post(made.append, number)
        mailbox.post(done.set)

    thread = threading.Thread(target=post)
    thread.start()
    await asyncio.wait_for(done.wait(), 30)
    thread.join()
    assert made == list(range(2000))


async def test_others_run_between_calls_that_take_long() -> None:
    made: list[int] = []
    clock = [0.0]

    def work(number: int) -> None:
        made.append(number)
        clock[0] += 1.0

    mailbox = LoopMailbox(asyncio.get_running_loop(), lambda: clock[0])
    for number in range(4):
        mailbox.post(work, number)
    counts = []
    while len(made) < 4:
        await asyncio.sleep(0)
        counts.append(len(made))
    assert counts == [1, 2, 3, 4]


async def test_an_error_holds_up_nobody() -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    mailbox, done = LoopMailbox(loop), asyncio.Event()
    mailbox.post(lambda: 1 / 0)
    mailbox.post(done.set)
    await asyncio.wait_for(done.wait(), 30)
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_a_closed_loop_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    mailbox = LoopMailbox(loop)
    loop.close()
    mailbox.post(print)


def test_a_loop_that_is_closed_during_a_post_takes_nothing_and_harms_nobody() -> None:
    """A thread that posts, such as the engine's, must not end with it."""

    class Closed(asyncio.SelectorEventLoop):
        num_asked = 0

        def is_closed(self) -> bool:
            self.num_asked += 1
            return super().is_closed() and self.num_asked != 1

    loop = Closed()
    loop.close()
    loop.num_asked = 0
    LoopMailbox(loop).post(print)
    assert loop.num_asked > 1
