"""Connections of front ends to an engine: with its key, with TLS, and nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from rank_certificates import write_certificates

from quire.errors import EngineDeadError, RankError
from quire.executor.nodes.handshake import PROTOCOL
from quire.ray.serve import links
from quire.ray.serve.links import EngineDoor, Link, link_over, opened


@dataclass
class Echo:
    """Sends all messages back, after the purpose of the connection."""

    links: list[Link] = field(default_factory=list)

    def begin(self, purpose: str, connected: socket.socket) -> None:
        self.task = asyncio.get_running_loop().create_task(self._serve(purpose, connected))

    async def _serve(self, purpose: str, connected: socket.socket) -> None:
        link = await link_over(connected, accepts=True)
        self.links.append(link)
        await link.write(purpose.encode())
        while True:
            await link.write(await link.read())


@pytest.mark.parametrize("has_tls", [False, True])
async def test_messages_of_all_sizes(
    has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_tls:
        for name, value in write_certificates(tmp_path).items():
            monkeypatch.setenv(name, value)

    echo = Echo()
    door = EngineDoor("127.0.0.1", echo.begin)
    link = await opened(door.entrance, "front end 1")
    assert await link.read() == b"front end 1"
    for size in (0, 1, 70_000, 5_000_000):
        message = bytes(size)
        _, found = await asyncio.gather(link.write(message), link.read())
        assert found == message
    echo.links[0].close()
    with pytest.raises((EngineDeadError, OSError)):
        await link.read()
    link.close()
    door.close()
    await asyncio.gather(echo.task, return_exceptions=True)


async def test_strangers_get_nothing() -> None:
    echo = Echo()
    door = EngineDoor("127.0.0.1", echo.begin)
    wrong = msgspec.structs.replace(door.entrance, key=b"0" * 32)
    with pytest.raises(RankError, match="has another key"):
        await opened(wrong, "front end 1")
    reader, writer = await asyncio.open_connection(door.entrance.address, door.entrance.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(len(PROTOCOL) + 32))
    assert await reader.read() == b""
    writer.close()
    door.close()
    assert not echo.links


async def test_a_message_that_is_too_long_is_refused() -> None:
    own, other = socket.socketpair()
    link = await link_over(own, accepts=True)
    other.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(EngineDeadError, match="is longer than"):
        await link.read()
    link.close()
    other.close()
    await asyncio.sleep(0)


def test_a_host_is_known_without_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    own = links.this_host()
    assert own == links.this_host()
    monkeypatch.setattr(os, "readlink", lambda path: f"{path}:[1]")
    assert links.this_host() != own, "another namespace of the same machine"
    monkeypatch.setattr(links, "_BOOT_ID", Path("/nowhere"))
    assert links.this_host() == "localhost"
