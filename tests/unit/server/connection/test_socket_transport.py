"""A transport that reads as soon as it is opened, over a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from polling import soon

from quire.server.connection.socket_transport import SocketTransport

MIB = bytes(range(256)) * 4096


class Recorder(asyncio.BufferedProtocol):
    """What a transport says to its protocol."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = b""
        self.stays_open = True
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002
        self.calls.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(f"lost {type(exc).__name__}")

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.stays_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Ends:
    """A transport and its protocol, and the client at the other end."""

    def __init__(self) -> None:
        self.client, server = socket.socketpair()
        server.setblocking(False)
        self.client.settimeout(10)
        self.protocol = Recorder()
        self.transport = SocketTransport(asyncio.get_running_loop(), server, self.protocol)

    async def all_received(self) -> bytes:
        """What the client receives until the end of the connection, read on a thread."""

        def read() -> bytes:
            data = b""
            while part := self.client.recv(1 << 16):
                data += part
            return data

        return await asyncio.to_thread(read)


Scenario = Callable[[Ends], Awaitable[None]]


async def reads_at_once(ends: Ends) -> None:
    ends.client.sendall(b"first")
    ends.transport.open()
    assert (ends.protocol.calls, ends.protocol.received) == (["made"], b"first")
    ends.client.sendall(b" second")
    await soon(lambda: ends.protocol.received == b"first second")


async def writes_more_than_the_client_takes(ends: Ends) -> None:
    ends.transport.open()
    ends.transport.write(MIB)
    ends.transport.write(MIB)
    assert ends.protocol.calls == ["made", "pause"]
    assert ends.transport.get_write_buffer_size() > 1 << 20
    ends.transport.close()
    assert ends.transport.is_closing()
    assert await ends.all_received() == 2 * MIB
    await soon(lambda: ends.protocol.calls == ["made", "pause", "resume", "lost NoneType"])


async def half_closes_after_all_is_sent(ends: Ends) -> None:
    ends.transport.open()
    ends.transport.write(MIB)
    ends.transport.write_eof()
    ends.transport.write(b"too late")
    assert await ends.all_received() == MIB
    ends.client.sendall(b"still here")
    await soon(lambda: ends.protocol.received == b"still here")
    assert "lost NoneType" not in ends.protocol.calls


async def goes_on_after_the_clients_end(ends: Ends) -> None:
    ends.client.shutdown(socket.SHUT_WR)
    ends.transport.open()
    assert ends.protocol.calls == ["made", "eof"]
    ends.transport.write(b"reply")
    ends.transport.close()
    assert await ends.all_received() == b"reply"


async def closes_at_the_clients_end(ends: Ends) -> None:
    ends.protocol.stays_open = False
    ends.transport.open()
    ends.client.close()
    await soon(lambda: ends.protocol.calls == ["made", "eof", "lost NoneType"])


async def loses_a_client_that_is_gone(ends: Ends) -> None:
    ends.transport.open()
    ends.transport.pause_reading()
    ends.client.close()
    ends.transport.write(b"to nobody")
    ends.transport.write(b"again")
    ends.transport.abort()
    await soon(lambda: ends.protocol.calls == ["made", "lost BrokenPipeError"])


async def drops_what_is_unsent(ends: Ends) -> None:
    ends.transport.open()
    ends.transport.write(MIB)
    ends.transport.abort()
    ends.transport.abort()
    assert len(await ends.all_received()) < len(MIB)
    await soon(lambda: ends.protocol.calls == ["made", "pause", "lost NoneType"])


async def leaves_bytes_while_paused(ends: Ends) -> None:
    ends.transport.open()
    ends.transport.pause_reading()
    ends.client.sendall(b"later")
    await asyncio.sleep(0.02)
    assert not ends.transport.is_reading()
    assert ends.protocol.received == b""
    ends.transport.resume_reading()
    await soon(lambda: ends.protocol.received == b"later")


@pytest.mark.parametrize(
    "scenario",
    [
        reads_at_once, writes_more_than_the_client_takes, half_closes_after_all_is_sent,
        goes_on_after_the_clients_end, closes_at_the_clients_end, loses_a_client_that_is_gone,
        drops_what_is_unsent, leaves_bytes_while_paused,
    ],
)  # fmt: skip
async def test_a_transport(scenario: Scenario) -> None:
    ends = Ends()
    await scenario(ends)
    ends.transport.abort()
    await asyncio.sleep(0)
    assert ends.transport.get_extra_info("socket").fileno() == -1
    assert ends.protocol.calls[-1].startswith("lost")
    ends.client.close()
