"""Connections between machines: only those that know the key come in, and strangers cannot stop
others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from quire.errors import RankError
from quire.executor.nodes import handshake
from quire.executor.nodes.door import Door
from quire.executor.nodes.handshake import PROTOCOL, connect

KEY = b"a secret of the engine"


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", 0, KEY)
    yield made
    made.close()


def test_each_connection_arrives_for_its_purpose(door: Door) -> None:
    address = (door.host, door.port)
    with connect(address, KEY, b"second") as second, connect(address, KEY, b"first") as first:
        first.sendall(b"1")
        second.sendall(b"2")
        until = time.monotonic() + 60
        with door.take(b"first", until) as one, door.take(b"second", until) as two:
            assert (one.recv(1), two.recv(1)) == (b"1", b"2")


def test_another_key_is_refused_on_both_sides(door: Door) -> None:
    with pytest.raises(RankError, match="QUIRE_RANK_KEY must be the same"):
        connect((door.host, door.port), b"another secret text", b"node 1")
    with pytest.raises(RankError, match="node 1 has not connected"):
        door.take(b"node 1", time.monotonic() + 0.2)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, PROTOCOL + b"x" * 99])
def test_strangers_do_not_come_in_and_do_not_block(door: Door, sent: bytes) -> None:
    address = (door.host, door.port)
    with socket.create_connection(address) as stranger:
        stranger.sendall(sent)
        with connect(address, KEY, b"node 1"):
            door.take(b"node 1", time.monotonic() + 60).close()
        assert door._arrived == {}


def test_a_crowd_of_strangers_does_not_keep_a_machine_out(door: Door) -> None:
    address = (door.host, door.port)
    strangers = [socket.create_connection(address) for _ in range(100)]
    with connect(address, KEY, b"node 1"):
        door.take(b"node 1", time.monotonic() + 60).close()
    for stranger in strangers:
        stranger.close()


def test_a_stranger_who_sends_slowly_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not keep a place."""
    monkeypatch.setattr(handshake, "_TIMEOUT_S", 0.3)
    ours, theirs = socket.socketpair()
    found = ThreadPoolExecutor(1).submit(handshake.welcome, ours, KEY)
    with suppress(OSError), theirs:
        for byte in PROTOCOL + bytes(32):
            theirs.send(bytes([byte]))
            time.sleep(0.05)
    assert found.result(60) is None


def test_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        connect(("127.0.0.1", port), KEY, b"node 1")
