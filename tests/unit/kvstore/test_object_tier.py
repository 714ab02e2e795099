"""ObjectTier against a server that speaks S3, and what may go wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from ports import free_ports
from s3_server import BUCKET, S3Server
from tcp_proxy import TcpProxy, drip

from quire.errors import ConfigError
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import TierError
from quire.kvstore.tiers.objects import ObjectTier

pytest.importorskip("obstore")

MOST = 1 << 24
URL = f"s3://{BUCKET}/a/prefix"


def key_of(number: int) -> ChunkKey:
    return ChunkKey(b"\7" * 32, number.to_bytes(32, "big"), 0)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def assert_fails(tier: ObjectTier) -> None:
    """Every call does, and tells no secret."""
    for call in (
        lambda: tier.contains([key_of(1)]),
        lambda: tier.read(key_of(1), MOST),
        lambda: tier.write(key_of(1), [b"x"]),
        lambda: tier.delete(key_of(1)),
    ):
        with pytest.raises(TierError, match="s3://kv-chunks/a/prefix: ") as caught:
            call()
        assert "test-secret" not in str(caught.value)
    tier.close()


@pytest.mark.usefixtures("environment")
def test_a_chunk_is_an_object_below_the_prefix() -> None:
    import obstore

    tier = ObjectTier(URL)
    tier.write(key_of(1), [b"a", b"chunk"])
    bucket = obstore.store.from_url(f"s3://{BUCKET}")
    path = f"a/prefix/{'07' * 16}/00/{1:064x}-0.kv"
    assert bytes(bucket.get(path).bytes()) == b"achunk"
    tier.delete(key_of(1))
    with pytest.raises(FileNotFoundError):
        bucket.head(path)
    tier.close()


def test_nobody_is_there(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports()}")
    assert_fails(ObjectTier(URL, timeout_s=5))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
    ids=["forbidden", "unauthorized", "slow down", "elsewhere", "no HTTP"],
)
def test_a_server_that_refuses(
    server: S3Server, environment: pytest.MonkeyPatch, answer: bytes
) -> None:
    def refuse(_: bytes) -> Iterator[bytes]:
        yield answer
        raise OSError

    with TcpProxy(server.port, refuse) as proxy:
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        assert_fails(ObjectTier(URL, timeout_s=2))


@pytest.mark.usefixtures("environment")
def test_no_such_bucket_has_no_chunks_and_takes_none() -> None:
    tier = ObjectTier("s3://no-such-bucket")
    assert tier.read(key_of(1), MOST) is None
    with pytest.raises(TierError, match="s3://no-such-bucket: "):
        tier.write(key_of(1), [b"x"])
    tier.close()


def test_an_answer_that_drips_ends_with_the_timeout(
    server: S3Server, environment: pytest.MonkeyPatch
) -> None:
    tier = ObjectTier(URL)
    tier.write(key_of(2), [bytes(100_000)])
    tier.close()
    with TcpProxy(server.port) as proxy:
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        tier = ObjectTier(URL, timeout_s=1.0)
        assert tier.contains([key_of(2)]) == [True]
        proxy.treat = drip
        with pytest.raises(TierError):
            tier.read(key_of(2), MOST)
        tier.close()


def test_old_objects_count_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = ObjectTier("memory:///", ttl_s=1000)
    tier.write(key_of(1), [b"chunk"])
    assert tier.contains([key_of(1)]) == [True]
    monkeypatch.setattr(tier, "_ttl", timedelta(seconds=-10))
    assert tier.contains([key_of(1)]) == [False]
    assert tier.read(key_of(1), MOST) is None
    monkeypatch.setattr(tier, "_ttl", None)
    assert tier.contains([key_of(1)]) == [False], "it was removed"
    tier.close()


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "ftp://user:geheim@host/x", "az://"])
def test_a_wrong_url_is_an_error_that_tells_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be opened") as caught:
        ObjectTier(url)
    assert "geheim" not in str(caught.value)
