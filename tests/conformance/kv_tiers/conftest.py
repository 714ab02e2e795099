"""Every tier of the KV store, each empty, with room for `MAX_BYTES` at least."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import faulty_tiers
import pytest
from redis_server import RedisServer
from s3_server import BUCKET, S3Server

from quire.kvstore.tiers.base import Tier
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.memory import MemoryTier
from quire.kvstore.tiers.objects import ObjectTier
from quire.kvstore.tiers.redis import RedisTier

MAX_BYTES = 64 << 20


def _memory(_: pytest.FixtureRequest) -> Tier:
    return MemoryTier(MAX_BYTES)


def _disk(request: pytest.FixtureRequest) -> Tier:
    path: Path = request.getfixturevalue("tmp_path")
    return DiskTier(path / "kv", MAX_BYTES)


def _wrapped(_: pytest.FixtureRequest) -> Tier:
    """What tests of the store put around tiers keeps the contract where it does no harm."""
    inner = faulty_tiers.CorruptTier(MemoryTier(MAX_BYTES), share=0.0)
    return faulty_tiers.SlowTier(faulty_tiers.FlakyTier(inner, share=0.0))


def _redis(request: pytest.FixtureRequest) -> Tier:
    redis = pytest.importorskip("redis")
    server: RedisServer = request.getfixturevalue("redis_server")
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return RedisTier(server.url)


def _s3(request: pytest.FixtureRequest) -> Tier:
    pytest.importorskip("obstore")
    server: S3Server = request.getfixturevalue("s3_server")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectTier(f"s3://{BUCKET}/{secrets.token_hex(8)}", timeout_s=60)


def _objects_in_memory(_: pytest.FixtureRequest) -> Tier:
    pytest.importorskip("obstore")
    return ObjectTier("memory:///")


def _objects_in_files(request: pytest.FixtureRequest) -> Tier:
    pytest.importorskip("obstore")
    path: Path = request.getfixturevalue("tmp_path")
    return ObjectTier(path.as_uri())


TIERS: dict[str, Callable[[pytest.FixtureRequest], Tier]] = {
    "memory": _memory,
    "disk": _disk,
    "wrapped": _wrapped,
    "redis": _redis,
    "s3": _s3,
    "objects in memory": _objects_in_memory,
    "objects in files": _objects_in_files,
}


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[Tier]:
    tier = TIERS[request.param](request)
    yield tier
    tier.close()
