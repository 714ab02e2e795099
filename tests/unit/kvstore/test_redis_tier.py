"""RedisTier against a real server, and against whatever may go wrong with one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports
from redis_server import RedisServer, wait_for_port, write_certificate
from tcp_proxy import TcpProxy, drip

from quire.errors import ConfigError
from quire.kvstore.chunk_file import ChunkError, decode, encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import TierError
from quire.kvstore.tiers.redis import RedisTier

redis = pytest.importorskip("redis")

MOST = 1 << 24
SHAPE = ChunkShape(2, 500_000)


def key_of(number: int) -> ChunkKey:
    return ChunkKey(bytes(32), number.to_bytes(32, "big"), 0)


def value_name(number: int) -> str:
    return f"quire:kv:{key_of(number).folder}:{key_of(number).name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy


def through(proxy: TcpProxy, timeout_s: float = 30.0) -> RedisTier:
    return RedisTier(f"redis://127.0.0.1:{proxy.port}", timeout_s=timeout_s)


def test_a_chunk_is_one_value(server: RedisServer, client: Any) -> None:
    tier = RedisTier(server.url)
    parts = encode(key_of(1), SHAPE, bytes(SHAPE.num_bytes))
    tier.write(key_of(1), parts)
    assert client.keys() == [value_name(1).encode()]
    assert client.get(value_name(1)) == b"".join(parts)
    assert client.ttl(value_name(1)) == -1
    tier.close()


def test_ttl_begins_anew_with_each_use(server: RedisServer, client: Any) -> None:
    tier = RedisTier(server.url, ttl_s=1000)
    tier.write(key_of(1), [b"chunk"])
    assert 900_000 < client.pttl(value_name(1)) <= 1_000_000
    client.pexpire(value_name(1), 5000)
    assert tier.contains([key_of(1), key_of(2)]) == [True, False]
    assert client.pttl(value_name(1)) > 900_000
    client.pexpire(value_name(1), 1)
    time.sleep(0.02)
    assert tier.contains([key_of(1)]) == [False]
    assert tier.read(key_of(1), MOST) is None
    tier.close()


def test_a_unix_socket_and_another_database(server: RedisServer, client: Any) -> None:
    tier = RedisTier(f"unix://{server.unix_socket}?db=3")
    tier.write(key_of(1), [b"chunk"])
    assert tier.read(key_of(1), MOST) == b"chunk"
    assert client.keys() == []
    valkey = RedisTier(server.url.replace("redis", "valkey") + "/3")
    assert valkey.contains([key_of(1)]) == [True]
    tier.close()
    valkey.close()


def test_no_more_is_asked_for_than_may_be_there(client: Any, proxy: TcpProxy) -> None:
    client.set(value_name(1), bytes(4 << 20))
    sent = 0

    def count(data: bytes) -> Iterable[bytes]:
        nonlocal sent
        sent += len(data)
        return [data]

    proxy.treat = count
    tier = through(proxy)
    assert tier.read(key_of(1), 100) is None
    assert sent < 1000
    assert client.keys() == [], "what is too long is dropped"
    tier.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:geheim@host:notaport",
        "redis://me:ge/heim@host:1",
        "redis://host:99999999",
        "redis://localhost:1?no_such_option=geheim",
        "http://geheim@host",
        "",
    ],
)
def test_a_wrong_url_is_an_error_that_tells_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="redis://") as caught:
        RedisTier(url)
    assert "heim" not in str(caught.value)


def failing(tier: RedisTier) -> list[str]:
    """What each call says; all of them have to fail."""
    messages = []
    calls: list[Callable[[], object]] = [
        lambda: tier.contains([key_of(1), key_of(2)]),
        lambda: tier.read(key_of(1), MOST),
        lambda: tier.write(key_of(1), [b"chunk"]),
        lambda: tier.delete(key_of(1)),
    ]
    for call in calls:
        with pytest.raises(TierError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_no_server_is_an_error_and_a_later_one_is_used(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    tier = RedisTier(f"redis://me:geheim@127.0.0.1:{server.port}")
    for message in failing(tier):
        assert f"127.0.0.1:{server.port}" in message
        assert "refused" in message
        assert "geheim" not in message
    tier.close()
    tier = RedisTier(server.url)
    failing(tier)
    for _ in range(2):
        with server:
            tier.write(key_of(1), [b"chunk"])
            assert tier.read(key_of(1), MOST) == b"chunk"
        failing(tier)
    tier.close()


def test_a_password_that_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--requirepass", "right") as server:
        for url in (server.url.replace("//", "//:geheim@"), server.url):
            tier = RedisTier(url)
            for message in failing(tier):
                assert str(server.port) in message
                assert "geheim" not in message
            tier.close()
        tier = RedisTier(server.url.replace("//", "//:right@"))
        tier.write(key_of(1), [b"chunk"])
        assert tier.read(key_of(1), MOST) == b"chunk"
        tier.close()


def test_tls_and_a_certificate_that_nobody_trusts(tmp_path: Path) -> None:
    certificate, private_key = write_certificate(tmp_path)
    port = free_ports()
    options = (
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(private_key)),
    )
    with RedisServer(tmp_path, *options):
        wait_for_port(port)
        tier = RedisTier(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        tier.write(key_of(1), [bytes(1 << 20)])
        assert tier.read(key_of(1), MOST) == bytes(1 << 20)
        tier.close()
        tier = RedisTier(f"rediss://127.0.0.1:{port}")
        assert all("certificate verify failed" in message for message in failing(tier))
        tier.close()


def test_a_server_without_memory(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--maxmemory", "8mb") as server:
        tier = RedisTier(server.url)
        tier.write(key_of(1), [bytes(1 << 20)])
        with pytest.raises(TierError, match="maxmemory"):
            tier.write(key_of(2), [bytes(9 << 20)])
        assert tier.read(key_of(1), MOST) == bytes(1 << 20)
        tier.close()


def test_a_server_that_stands_still(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        tier = RedisTier(server.url, timeout_s=0.2)
        tier.write(key_of(1), [b"chunk"])
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        assert all("127.0.0.1" in message for message in failing(tier))
        os.kill(server.process.pid, signal.SIGCONT)
        assert tier.read(key_of(1), MOST) == b"chunk"
        tier.close()


def test_a_value_that_drips_ends_with_the_timeout(client: Any, proxy: TcpProxy) -> None:
    client.set(value_name(1), bytes(1 << 20))
    tier = through(proxy, timeout_s=0.5)
    assert tier.contains([key_of(1)]) == [True]
    proxy.treat = drip
    with pytest.raises(TierError, match=r"no reply within 0\.5 s"):
        tier.read(key_of(1), MOST)
    proxy.treat = lambda data: [data]
    fresh = through(proxy)
    assert fresh.read(key_of(1), MOST) == bytes(1 << 20)
    tier.close()
    fresh.close()


def test_a_connection_that_is_lost_in_the_middle(client: Any, proxy: TcpProxy) -> None:
    client.set(value_name(1), bytes(1 << 20))

    def cut(data: bytes) -> Iterable[bytes]:
        yield data[:1000]
        raise OSError

    tier = through(proxy)
    assert tier.contains([key_of(1)]) == [True]
    proxy.treat = cut
    with pytest.raises(TierError, match="closed"):
        tier.read(key_of(1), MOST)
    proxy.treat = lambda data: [data]
    assert tier.read(key_of(1), MOST) == bytes(1 << 20)
    tier.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"\0" * 100 + b"\r\n",
        b"$abc\r\n",
        b"*-7\r\n",
        b"*1\r\n" * 10_000,
        b":5\r\n",
        b"$-1\r\n",
    ],
    ids=["http", "zeros", "no number", "negative", "nested", "a number", "nothing"],
)
@pytest.mark.usefixtures("client")
def test_an_answer_that_is_none(proxy: TcpProxy, reply: bytes) -> None:
    tier = through(proxy, timeout_s=1.0)
    assert tier.contains([key_of(1)]) == [False]
    proxy.treat = lambda _: [reply]
    with pytest.raises(TierError):
        tier.read(key_of(1), MOST)
    proxy.treat = lambda data: [data]
    assert tier.read(key_of(1), MOST) is None
    tier.close()


def test_changed_bytes_are_noticed(client: Any, server: RedisServer) -> None:
    tier = RedisTier(server.url)
    tier.write(key_of(1), encode(key_of(1), SHAPE, bytes(SHAPE.num_bytes)))
    client.setrange(value_name(1), 700_000, b"\1")
    with pytest.raises(ChunkError) as caught:
        decode(tier.read(key_of(1), MOST) or b"", key_of(1), SHAPE)
    assert caught.value.kind == "checksum"
    client.delete(value_name(1))
    client.lpush(value_name(1), "a list")
    with pytest.raises(TierError, match="wrong kind"):
        tier.read(key_of(1), MOST)
    tier.close()


def test_closing_ends_those_that_wait(client: Any, proxy: TcpProxy) -> None:
    client.set(value_name(1), bytes(1 << 20))
    tier = through(proxy)
    tier.contains([key_of(1)])
    waits, go_on = threading.Event(), threading.Event()

    def hold(data: bytes) -> Iterable[bytes]:
        waits.set()
        go_on.wait(30)
        return [data]

    proxy.treat = hold
    messages: list[str] = []

    def read() -> None:
        try:
            tier.read(key_of(1), MOST)
        except TierError as error:
            messages.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert waits.wait(30)
    tier.close()
    thread.join(30)
    go_on.set()
    assert len(messages) == 1
    assert "closed" in messages[0]
