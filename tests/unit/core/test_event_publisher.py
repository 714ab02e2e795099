"""EventPublisher: the wire of vLLM's KV events, what is sent again, and that nobody waits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import vllm_kv_events as vllm
import zmq

from quire.config.kv_cache import KVEventsConfig
from quire.core import event_publisher
from quire.core.event_publisher import EventPublisher
from quire.errors import ConfigError
from quire.protocol.kv_events import AllBlocksCleared, BlockRemoved, KVEvent

END = b"\xff" * 8


def removed(number: int) -> list[KVEvent]:
    return [BlockRemoved(block_hashes=[number], medium="GPU", group_idx=0)]


class Sockets:
    """A publisher below a directory, and those who talk to it."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", topic="kv@here",
            endpoint=f"ipc://{path}/pub", replay_endpoint=f"ipc://{path}/replay",
        )  # fmt: skip
        self.config = dataclasses.replace(self.config, **changes)
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.publisher = EventPublisher(self.config)

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.rcvtimeo = 20_000
        self.sockets.append(socket)
        return socket

    def subscriber(self) -> zmq.Socket[bytes]:
        socket = self.socket(zmq.SUB)
        socket.subscribe(self.config.topic)
        socket.connect(self.config.endpoint)
        # Subscribing takes a while: what comes meanwhile is not received.
        while not socket.poll(20):
            self.publisher.publish([AllBlocksCleared()])
        while socket.poll(100):
            self.last = socket.recv_multipart()
        return socket

    def replay(self, first: bytes) -> list[list[bytes]]:
        socket = self.socket(zmq.DEALER)
        socket.connect(str(self.config.replay_endpoint))
        socket.send_multipart([b"", first])
        found = []
        while not found or found[-1][2] != END:
            found.append(socket.recv_multipart())
        return found

    def close(self) -> None:
        self.publisher.close()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    found = Sockets(tmp_path)
    yield found
    found.close()


def number_of(frames: list[bytes]) -> int:
    return int.from_bytes(frames[1], "big")


def test_the_wire(sockets: Sockets) -> None:
    socket = sockets.subscriber()
    before = number_of(sockets.last)
    sockets.publisher.publish(removed(7))
    sockets.publisher.publish(removed(8))
    frames = [socket.recv_multipart() for _ in range(2)]
    assert [number_of(one) for one in frames] == [before + 1, before + 2]
    assert [one[0] for one in frames] == [b"kv@here"] * 2
    batch = msgspec.msgpack.decode(frames[0][2], type=vllm.KVEventBatch)
    assert batch.events == [vllm.BlockRemoved(block_hashes=[7], medium="GPU", group_idx=0)]
    assert batch.data_parallel_rank == 0
    assert abs(batch.ts - time.time()) < 60
    raw = msgspec.msgpack.decode(frames[0][2])
    assert raw[1:] == [
        [{"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}], 0,
    ]  # fmt: skip


def test_what_was_missed_is_sent_again(sockets: Sockets) -> None:
    for number in range(5):
        sockets.publisher.publish(removed(number))
    answers = sockets.replay((2).to_bytes(8, "big"))
    assert [number_of(one[1:]) for one in answers[:-1]] == [2, 3, 4]
    assert answers[-1] == [b"", b"", END, b""]
    batches = [msgspec.msgpack.decode(one[3], type=vllm.KVEventBatch) for one in answers[:-1]]
    assert [one.events[0].block_hashes for one in batches] == [[2], [3], [4]]
    assert len(sockets.replay((99).to_bytes(8, "big"))) == 1


def test_what_is_no_request_has_no_answer(sockets: Sockets) -> None:
    socket = sockets.socket(zmq.DEALER)
    socket.connect(str(sockets.config.replay_endpoint))
    for frames in ([b""], [b"", b"1"], [b"x"], [b"", b"1" * 9], [b"", b"", b"", b""]):
        socket.send_multipart(frames)
    assert len(sockets.replay(bytes(8))) == 1
    assert not socket.poll(50)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is kept to be sent again, by number and by bytes."""
    sockets = Sockets(tmp_path, buffer_steps=3)
    for number in range(9):
        sockets.publisher.publish(removed(number))
    assert [number_of(one[1:]) for one in sockets.replay(bytes(8))[:-1]] == [6, 7, 8]
    monkeypatch.setattr(event_publisher, "MAX_KEPT_BYTES", 150)
    sockets.publisher.publish(removed(9))
    assert len(sockets.replay(bytes(8))) < 4
    sockets.close()


def test_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher whose thread does nothing: new batches are dropped, and their numbers missing."""
    monkeypatch.setattr(EventPublisher, "_run", lambda _: None)
    sockets = Sockets(tmp_path, max_queue_size=5)
    for number in range(50):
        sockets.publisher.publish(removed(number))
    assert [number for number, _ in sockets.publisher._queue] == [0, 1, 2, 3, 4]
    sockets.publisher._queue.popleft()
    sockets.publisher.publish(removed(50))
    assert sockets.publisher._queue[-1][0] == 50
    sockets.publisher._close_sockets(0)
    sockets.close()


def test_a_subscriber_that_takes_nothing(tmp_path: Path) -> None:
    """It loses batches; others get all, and the engine does not wait."""
    sockets = Sockets(tmp_path, hwm=1000)
    slow = sockets.subscriber()
    slow.rcvhwm = 1
    quick = sockets.subscriber()
    first = number_of(sockets.last) + 1
    for number in range(300):
        sockets.publisher.publish(removed(number) * 10)
        assert number_of(quick.recv_multipart()) == first + number
    sockets.close()


def test_an_endpoint_that_is_taken() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        config = KVEventsConfig(True, "zmq", f"tcp://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=f"endpoint tcp://127.0.0.1:{port} cannot be used"):
            EventPublisher(config)


def test_who_subscribes_to_very_much_is_disconnected(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is subscribed to is kept. Others subscribe again on their own, and can have what they
    missed."""
    monkeypatch.setattr(event_publisher, "MAX_SUBSCRIBED_BYTES", 10_000)
    sockets.publisher._pause_s = 0.1
    quiet = sockets.subscriber()
    for _ in range(3):
        for number in range(50):  # no more than a few at a time
            quiet.subscribe(f"other-{number}")
        for number in range(50):
            quiet.unsubscribe(f"other-{number}")
    sockets.publisher.publish(removed(1))
    missed = number_of(quiet.recv_multipart()) + 1
    hostile = sockets.socket(zmq.XSUB)
    monitor = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    hostile.connect(sockets.config.endpoint)
    for number in range(1000):
        hostile.send(b"\1" + str(number).encode())
    assert monitor.poll(20_000)
    hostile.disable_monitor()
    monitor.close()
    hostile.close(linger=0)
    sockets.publisher.publish(removed(2))
    while not quiet.poll(50):
        sockets.publisher.publish(removed(3))
    assert number_of(quiet.recv_multipart()) >= missed
    answers = sockets.replay(missed.to_bytes(8, "big"))
    assert number_of(answers[0][1:]) == missed


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.XSUB])
def test_who_sends_much_is_disconnected(sockets: Sockets, kind: int) -> None:
    """A subscriber sends topics and numbers; no more than those is taken from it."""
    endpoint = sockets.config.endpoint
    if kind == zmq.DEALER:
        endpoint = str(sockets.config.replay_endpoint)
    hostile = sockets.socket(kind)
    monitor = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    hostile.connect(endpoint)
    hostile.send(b"\1" + b"x" * 100_000)
    is_disconnected = monitor.poll(20_000)
    hostile.disable_monitor()
    monitor.close()
    hostile.close(linger=0)
    assert is_disconnected
    assert sockets.replay(bytes(8)) == [[b"", b"", END, b""]]
