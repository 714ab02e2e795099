"""A crowd that connects and asks takes a little of each turn of the event loop, and those who ask
for health come first."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from quire.server.args import ServerArgs
from quire.server.connection import acceptor as acceptor_module
from quire.server.connection.acceptor import Acceptor
from quire.server.connection.shared_state import ConnectionSlots, SharedState, WorkScheduler
from quire.system.turn_queue import TurnQueue

from .conftest import echo

CROWD, AT_ONCE = 100, 8


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def shared_state(
    app: Any, max_connections: int, num_reserved: int, connects: int = AT_ONCE
) -> SharedState:
    slots = ConnectionSlots(max_connections, num_reserved)
    args = ServerArgs(
        max_connections=max_connections,
        reserved_connections=num_reserved,
        keep_alive_timeout=0.5,  # clients that read to the end wait for it
    )
    queues = (WorkScheduler(), TurnQueue(connects), TurnQueue(AT_ONCE))
    buffer = memoryview(bytearray(65536))
    return SharedState(app, args, slots, *queues, buffer, ServerState())


class Crowd:
    """Clients that have all sent a request; the last one has asked for health."""

    def __init__(self) -> None:
        self.order: list[str] = []
        """Paths as the application was called."""
        self.most_in_a_turn = 0
        """Calls in one turn of the event loop."""

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Writes down the path, and answers."""
        self.order.append(scope["path"])
        await echo(scope, receive, send)

    async def come(self, connects: int) -> None:
        shared = shared_state(self.app, 2 * CROWD, 10, connects)
        with socket.create_server(("127.0.0.1", 0), backlog=2 * CROWD) as listener:
            clients = [socket.create_connection(listener.getsockname()) for _ in range(CROWD + 1)]
            for client in clients[:-1]:
                client.sendall(request("/crowd"))
            clients[-1].sendall(request("/health"))
            acceptor = Acceptor(shared, listener, {})
            while len(self.order) <= CROWD:
                before = len(self.order)
                await asyncio.sleep(0)
                self.most_in_a_turn = max(self.most_in_a_turn, len(self.order) - before)
            for client in clients:
                client.close()
            await end(acceptor, shared)


def test_a_crowd_lets_health_pass() -> None:
    crowd = Crowd()
    asyncio.run(asyncio.wait_for(crowd.come(AT_ONCE), 60))
    assert crowd.order.count("/crowd") == CROWD
    assert crowd.order.index("/health") < CROWD // 2


def test_a_crowd_is_answered_some_at_a_time() -> None:
    crowd = Crowd()
    asyncio.run(asyncio.wait_for(crowd.come(connects=CROWD), 60))
    assert crowd.order.count("/crowd") == CROWD
    assert crowd.most_in_a_turn <= AT_ONCE + 1  # health besides


async def test_health_is_asked_for_in_the_turn_that_accepts() -> None:
    crowd, turns = Crowd(), 0
    shared = shared_state(crowd.app, 5, 5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(request("/health"))
            acceptor = Acceptor(shared, listener, {})
            while not crowd.order:
                turns += 1
                await asyncio.sleep(0)
            assert turns <= 3  # the loop looks at its sockets, accepts, and calls
        await end(acceptor, shared)


class Held(TurnQueue):
    """Makes calls when it is told to: until then the loop is too busy for them."""

    def add(self, call: Callable[[], object]) -> None:
        """It waits."""
        self._waiting[call] = None

    def let_go(self) -> None:
        """Makes all calls."""
        for call in list(self._waiting):
            call()


async def test_health_that_is_asked_for_later_does_not_wait_for_the_crowd() -> None:
    """Its bytes arrive after those of others that wait to become connections."""

    crowd = Crowd()
    shared = dataclasses.replace(shared_state(crowd.app, 5, 5), connects=Held(1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        acceptor = Acceptor(shared, listener, {})
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(acceptor._silent) == len(clients)
        clients[0].sendall(request("/crowd"))
        clients[1].sendall(request("/health"))
        while not crowd.order:
            await asyncio.sleep(0)
        assert crowd.order == ["/health"]
        for client in clients:
            client.close()
        await end(acceptor, shared)


async def test_its_end_closes_clients_that_wait() -> None:
    shared = dataclasses.replace(shared_state(echo, 5, 5), connects=Held(1))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=60) as client,
    ):
        acceptor = Acceptor(shared, listener, {})
        for _ in range(5):
            await asyncio.sleep(0)
        await end(acceptor, shared)
        assert client.recv(1) == b""
        assert not shared.connects._waiting


async def test_who_has_asked_for_health_loses_its_slot_to_nobody() -> None:
    connects = Held(1)
    shared = dataclasses.replace(shared_state(echo, 1, 1), connects=connects)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = Acceptor(shared, listener, {})
        clients = []
        for _ in range(3):
            clients.append(socket.create_connection(listener.getsockname(), timeout=60))
            await asyncio.sleep(0.01)  # it is accepted, and waits
            clients[-1].sendall(request("/health"))
        asked = [asyncio.to_thread(reply, client) for client in clients[1:]]
        assert await asyncio.gather(*asked) == [b"HTTP/1.1 200"] * 2
        for client in clients:
            client.close()
        connects.let_go()
        await end(acceptor, shared)


def reply(client: socket.socket) -> bytes:
    """The beginning of a reply; nothing if the connection is closed without one."""
    try:
        return client.recv(12)
    except ConnectionError:
        return b""


async def test_no_health_in_plain_text_where_there_is_tls() -> None:
    shared = shared_state(echo, 5, 5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(request("/health"))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            acceptor = Acceptor(shared, listener, {"ssl": context})
            assert b"HTTP" not in await asyncio.to_thread(client.recv, 100)
        await end(acceptor, shared)


async def end(acceptor: Acceptor, shared: SharedState) -> None:
    """After the clients have closed their connections."""
    while shared.server_state.connections:
        await asyncio.sleep(0.001)
    acceptor.close()
    await acceptor.wait_closed()


@pytest.mark.parametrize("leaves", [False, True])
async def test_few_clients_wait_without_a_slot(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients that send nothing, or leave at once."""
    monkeypatch.setattr(acceptor_module, "most_without_connection", lambda _: 16)

    shared = shared_state(echo, 5, 5)
    with socket.create_server(("127.0.0.1", 0), backlog=2 * CROWD) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
        if leaves:
            for client in clients:
                client.close()
        acceptor = Acceptor(shared, listener, {})
        before = num_files()
        most = 0
        for _ in range(50):
            await asyncio.sleep(0)
            most = max(most, num_files() - before)
        assert most <= (0 if leaves else 5 + 16 + AT_ONCE)
        for client in clients:
            client.close()
        await end(acceptor, shared)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "after a while"])
async def test_everyone_who_asks_gets_a_reply(is_late: bool) -> None:
    """Of ten times as many clients as there are connections; none has its request cut."""

    async def ask(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if is_late:
            await asyncio.sleep(0.05 + number / 1000)
        writer.write(b"POST /%d HTTP/1.1\r\nHost: localhost\r\n" % number)
        writer.write(b"Content-Length: 200000\r\n\r\n" + bytes(200_000))
        found = await reader.read()
        writer.close()
        return found.split(b" ")[1] if found else b"nothing"

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2)
        await echo(scope, receive, send)

    shared = shared_state(slow, 5, 5)
    with socket.create_server(("127.0.0.1", 0), backlog=CROWD) as listener:
        acceptor = Acceptor(shared, listener, {})
        before = num_files()
        asked = [ask(listener.getsockname()[1], number) for number in range(20)]
        found = await asyncio.gather(*asked)
        assert {*found} == {b"200", b"503"}
        assert found.count(b"200") >= 5
        while num_files() > before:
            await asyncio.sleep(0.01)
        await end(acceptor, shared)


async def test_a_request_that_was_not_read_yet_keeps_its_slot() -> None:
    """While the loop is too busy to make connections, more clients come."""

    connects = Held(1)
    shared = dataclasses.replace(shared_state(echo, 2, 1), connects=connects)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = Acceptor(shared, listener, {})
        clients = [socket.create_connection(listener.getsockname(), 60) for _ in range(2)]
        clients[0].sendall(request("/first"))
        await asyncio.sleep(1.1)  # both could lose their slots now
        clients += [socket.create_connection(listener.getsockname(), 60) for _ in range(2)]
        for client in clients[1:]:
            client.sendall(request("/later"))
        await asyncio.sleep(0.01)
        connects.let_go()
        asked = [asyncio.to_thread(reply, client) for client in clients]
        statuses = [found[-3:] for found in await asyncio.gather(*asked)]
        assert statuses[0] == b"200"
        assert sorted(statuses) == [b"200", b"200", b"503", b"503"]
        for client in clients:
            client.close()
        await end(acceptor, shared)


def num_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
