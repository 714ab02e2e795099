"""Connections over a transport that is a list of bytes, on a real event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.server import ServerState

from quire.server import ServerArgs
from quire.server.connection.connection import HttpConnection
from quire.server.connection.shared_state import ConnectionSlots, SharedState, WorkScheduler
from quire.system.turn_queue import TurnQueue

App = Callable[[Any, Any, Any], Awaitable[None]]


class FakeTransport(asyncio.Transport):
    """Keeps what is written. `is_stuck`: the client reads nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.sent = b""
        self.calls: list[str] = []
        self.is_stuck = False
        self.num_stuck = 0

    def write(self, data: Any) -> None:
        assert not {"close", "abort", "write_eof"} & {*self.calls}, "written after the end"
        self.sent += data
        self.num_stuck += len(data) if self.is_stuck else 0

    def is_closing(self) -> bool:
        return bool({"close", "abort"} & {*self.calls})

    def get_write_buffer_size(self) -> int:
        return self.num_stuck

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Line:
    """One connection: `feed` is the client's side, `transport` tells what came of it."""

    def __init__(self, app: App, **options: Any) -> None:
        args = ServerArgs(**options)
        self.slots = ConnectionSlots(args.max_connections, args.reserved_connections)
        self.buffer = memoryview(bytearray(65536))
        self.state = ServerState()
        queues = (WorkScheduler(), TurnQueue(8), TurnQueue(8))
        shared = SharedState(app, args, self.slots, *queues, self.buffer, self.state)
        slot = self.slots.acquire()
        assert slot is not None
        self.transport = FakeTransport()
        self.connection = HttpConnection(shared, slot)
        self.connection.connection_made(self.transport)

    def feed(self, data: bytes, step: int = 65536) -> None:
        for i in range(0, len(data), step):
            piece = data[i : i + step]
            self.buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))

    def statuses(self) -> list[int]:
        parts = self.transport.sent.split(b"HTTP/1.1 ")[1:]
        return [int(part[:3]) for part in parts]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with path and body."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    data = scope["path"].encode() + b":" + body
    headers = [(b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})
