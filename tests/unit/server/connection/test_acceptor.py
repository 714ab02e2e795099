"""Of a crowd that connects, those who ask for health come first."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.server import ServerState

from quire.server.args import ServerArgs
from quire.server.connection.acceptor import Acceptor
from quire.server.connection.limits.connection_slots import ConnectionSlots
from quire.server.connection.limits.work_scheduler import WorkScheduler
from quire.server.connection.shared_state import SharedState
from quire.system.turn_queue import TurnQueue

from .conftest import echo

CROWD = 60


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def test_a_crowd_lets_health_pass() -> None:
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["path"])
        await echo(scope, receive, send)

    async def scenario() -> None:
        slots = ConnectionSlots(2 * CROWD, 10)
        queues = (WorkScheduler(), TurnQueue(), TurnQueue())
        buffer = memoryview(bytearray(65536))
        shared = SharedState(app, ServerArgs(), slots, *queues, buffer, ServerState())
        with socket.create_server(("127.0.0.1", 0), backlog=2 * CROWD) as listener:
            clients = [socket.create_connection(listener.getsockname()) for _ in range(CROWD + 1)]
            for client in clients[:-1]:
                client.sendall(request("/crowd"))
            clients[-1].sendall(request("/health"))
            acceptor = Acceptor(shared, listener, {})
            while len(order) <= CROWD:
                await asyncio.sleep(0)
            for client in clients:
                client.close()
            while shared.server_state.connections:
                await asyncio.sleep(0.001)
            acceptor.close()
            await acceptor.wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert order.count("/crowd") == CROWD
    assert order.index("/health") < CROWD // 2
