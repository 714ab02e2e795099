"""RequestQueue: order, removal from anywhere, and no memory of the removed."""

from __future__ import annotations

import random

from quire.kvcache import SequenceBlocks
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.scheduler.request import Request, RequestQueue


def request(number: int) -> Request:
    message = EngineCoreRequest(
        request_id=str(number),
        prompt_token_ids=[1],
        sampling_params=SamplingParams(),
        arrival_time=0.0,
    )
    return Request(message, SequenceBlocks(b"", 1), number, (number,), 100)


def pop(queue: RequestQueue) -> Request:
    first = queue.peek()
    assert first is not None
    queue.remove(first)
    return first


def test_order_with_removals() -> None:
    rng = random.Random(1)
    requests = [request(number) for number in range(200)]
    queue = RequestQueue()
    for one in rng.sample(requests, 200):
        queue.push(one)
    removed = rng.sample(requests, 120)
    for one in removed:
        queue.remove(one)
    assert len(queue) == 80
    assert {one.request_id for one in queue} == {
        one.request_id for one in requests if one not in removed
    }
    popped = [pop(queue) for _ in range(80)]
    assert queue.peek() is None
    assert popped == [one for one in requests if one not in removed]


def test_a_preempted_request_returns_to_its_place() -> None:
    queue = RequestQueue()
    first, second = request(1), request(2)
    queue.push(first)
    queue.push(second)
    assert pop(queue) is first
    queue.push(first)
    assert queue.peek() is first


def test_aborted_requests_do_not_pile_up() -> None:
    queue = RequestQueue()
    queue.push(request(0))
    for number in range(1, 5000):
        one = request(number)
        queue.push(one)
        queue.remove(one)
    assert len(queue._heaps[False]) < 100


def test_requests_with_adapters_have_an_order_of_their_own() -> None:
    queue = RequestQueue()
    plain, adapted, earlier = request(2), request(1), request(0)
    adapted.adapter = earlier.adapter = "ab"
    for one in (plain, adapted, earlier):
        queue.push(one)
    queue.remove(earlier)
    assert queue.peek() is adapted
    assert queue.peek([False]) is plain
    assert [pop(queue), pop(queue)] == [adapted, plain]
