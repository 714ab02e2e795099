"""TLS between machines: messages and exchanges as without it, and only with a certificate of the
engine's authority."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from rank_certificates import write_certificates

from quire.errors import ConfigError, RankError
from quire.executor.nodes import tls
from quire.executor.nodes.door import Door
from quire.executor.nodes.handshake import PROTOCOL, connect
from quire.executor.nodes.tls import TlsConnection, messages_over, secured, tls_context
from quire.ranks import Link
from quire.ranks.links import Tag, exchange

KEY = b"a secret of the engine"


@pytest.fixture(autouse=True)
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = write_certificates(tmp_path)
    for name, path in found.items():
        monkeypatch.setenv(name, path)
    return found


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connecting = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    return connecting, accepted


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def both(pool: ThreadPoolExecutor, use: Callable[..., Any]) -> tuple[Any, Any]:
    """Both ends of a connection."""
    connecting, accepted = tcp_pair()
    accepting = pool.submit(use, accepted, accepts=True)
    return use(connecting, accepts=False), accepting.result(60)


def test_messages(pool: ThreadPoolExecutor) -> None:
    ends: list[Connection] = [messages_over(end) for end in both(pool, secured)]
    assert all(isinstance(end, TlsConnection) for end in ends)
    messages = [b"", b"a", os.urandom(20_000), os.urandom(3_000_000), b"end"]
    for one, other in (ends, reversed(ends)):
        assert not other.poll(0)
        sending = pool.submit(lambda end=one: [end.send_bytes(data) for data in messages])
        for data in messages:  # several may have arrived, and each is waited for
            assert wait([other], 60) == [other]
            assert other.recv_bytes() == data
        sending.result(60)
        assert not other.poll(0)
    ends[0].close()
    with pytest.raises((EOFError, OSError)):
        ends[1].recv_bytes()
    ends[1].close()


def test_exchanges(pool: ThreadPoolExecutor) -> None:
    """Both send more than the sockets hold before they receive."""
    links = [Link(f"rank {n}", end) for n, end in enumerate(both(pool, secured))]
    assert all(isinstance(link.socket, ssl.SSLSocket) for link in links)

    def run(link: Link, sent: bytes) -> bytes:
        found = bytearray(len(sent))
        for number in range(3):
            tag = Tag(1, 2, number)
            exchange(tag, {link: memoryview(sent)}, {link: memoryview(found)})
        return bytes(found)

    data = [os.urandom(5_000_001) for _ in links]
    found = list(pool.map(run, links, data))
    assert found == data[::-1]
    links[0].close()
    with pytest.raises(RankError, match="rank 1"):
        exchange(Tag(1, 2, 3), {}, {links[1]: memoryview(bytearray(4))})
    links[1].close()


def test_processes_of_one_machine_have_no_tls() -> None:
    one, other = socket.socketpair()
    assert secured(one, accepts=True) is one
    assert type(messages_over(secured(other, accepts=False))) is Connection
    one.close()


def test_another_authority_is_refused_on_both_sides(
    pool: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting, accepted = tcp_pair()
    own = tls_context(accepts=True)
    for name, path in write_certificates(tmp_path / "other").items():
        monkeypatch.setenv(name, path)
    monkeypatch.setattr(
        tls, "tls_context", lambda accepts: own if accepts else tls_context(accepts)
    )
    accepting = pool.submit(secured, accepted, accepts=True)
    text = "certificates of one authority on all machines"
    with pytest.raises(RankError, match=text):
        secured(connecting, accepts=False)
    with pytest.raises(RankError, match=text):
        accepting.result(60)


def test_a_machine_without_tls_stays_out() -> None:
    door = Door("127.0.0.1", 0, KEY)
    connect((door.host, door.port), KEY, b"node 1").close()
    with socket.create_connection((door.host, door.port)) as plain:
        plain.sendall(PROTOCOL + bytes(32))
        assert plain.recv(1) == b""
    door.close()


def test_files_are_checked_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIRE_RANK_CA", str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match="QUIRE_RANK_CA must name PEM files"):
        Door("127.0.0.1", 0, KEY)
    monkeypatch.delenv("QUIRE_RANK_CA")
    with pytest.raises(ConfigError, match="must all be set, or none of them"):
        Door("127.0.0.1", 0, KEY)
