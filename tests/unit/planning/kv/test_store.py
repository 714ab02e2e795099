"""Which tiers K/V is kept in, by Quire's arguments and by vLLM's."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVStoreConfig, KVTransferConfig
from quire.errors import ConfigError
from quire.planning.facts import gather_facts
from quire.planning.kv.disk import StoreDisk
from quire.planning.kv.store import chunk_blocks, describe
from quire.planning.plan import EnginePlan, plan_engine, settle
from quire.units import GiB, MiB

CHUNK_BYTES = 64 * 2 * 2 * 16 * 2 * 2
"""64 tokens of 2 layers, K and V, 2 heads of 16 numbers, 2 bytes each."""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("QUIRE_KV_STORE", "on")


def args(model_dir: Path, **given: Any) -> EngineArgs:
    return EngineArgs(str(model_dir), backend="reference", **given)


def plan(model_dir: Path, **given: Any) -> EnginePlan:
    return plan_engine(args(model_dir, **given))


def store(model_dir: Path, **given: Any) -> KVStoreConfig | None:
    return plan(model_dir, **given).config.kv_store


@pytest.mark.parametrize(
    ("block_bytes", "block_size", "wanted"),
    [
        (28 * MiB * 16 // 256, 16, 4),  # Qwen3-0.6B: 64 tokens
        (8 * MiB * 16 // 256, 16, 4),  # Llama-3.2-1B: 2 MiB
        (32 * MiB * 16 // 256, 16, 4),  # Llama-3.1-8B
        (1024, 16, 4), (1024, 24, 2), (1024, 1024, 1), (9 * MiB, 16, 1), (3 * MiB, 16, 2),
    ],
)  # fmt: skip
def test_the_size_of_a_chunk(block_bytes: int, block_size: int, wanted: int) -> None:
    assert chunk_blocks(block_bytes, block_size) == wanted


def test_files_by_default(model_dir: Path, tmp_path: Path) -> None:
    facts = gather_facts(args(model_dir))
    assert facts.kv_disk.path == tmp_path / "cache" / "quire" / "kv"
    assert facts.kv_disk.free_bytes > 0
    assert not (tmp_path / "cache").exists(), "planning writes nothing"
    for free, wanted in ((50 * GiB, 5 * GiB), (500 * GiB, 20 * GiB)):
        disk = StoreDisk(tmp_path, free)
        found = settle(args(model_dir), "llm", dataclasses.replace(facts, kv_disk=disk))
        assert found.config.kv_store == KVStoreConfig(4, disk_path=tmp_path, disk_bytes=wanted)
    for disk in (StoreDisk(tmp_path, 10 * CHUNK_BYTES - 1), StoreDisk(None, problem="no place")):
        found = settle(args(model_dir), "llm", dataclasses.replace(facts, kv_disk=disk))
        assert found.config.kv_store is None
        assert found.no_kv_store


def test_every_argument(model_dir: Path, tmp_path: Path) -> None:
    urls = ["redis://h:1/0", "s3://bucket/folder"]
    found = store(
        model_dir, kv_store_path=str(tmp_path / "kv"), kv_store_size=GiB, kv_store_memory=MiB,
        kv_store_url=urls, kv_store_ttl=60.0,
    )  # fmt: skip
    assert found == KVStoreConfig(4, MiB, tmp_path / "kv", GiB, tuple(urls), 60.0, "kv_both")
    assert store(model_dir, kv_store_size=0) is None
    assert store(model_dir, kv_store_size=0, kv_store_memory=MiB) == KVStoreConfig(4, MiB)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kv_store": False}, "switched off"),
        ({"enable_prefix_caching": False}, "prefix caching is off"),
        ({"enable_prefix_caching": False, "swap_space": 4}, "prefix caching is off"),
        ({"load_format": "dummy"}, "random numbers"),
        ({"kv_store_size": 0}, "kv_store_size is 0"),
    ],
    ids=str,
)
def test_what_switches_it_off(model_dir: Path, given: dict[str, Any], reason: str) -> None:
    found = plan(model_dir, **given)
    assert found.config.kv_store is None
    assert reason in found.no_kv_store


def test_the_environment_switches_it_off_where_nobody_asks(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_KV_STORE", "off")
    assert store(model_dir) is None
    assert store(model_dir, kv_store=True) is not None
    assert store(model_dir, kv_store_memory=MiB) is not None
    assert store(model_dir, kv_store=True, load_format="dummy") is not None
    monkeypatch.setenv("QUIRE_KV_STORE", "perhaps")
    with pytest.raises(ConfigError, match="QUIRE_KV_STORE='perhaps' must be on or off"):
        store(model_dir)


@pytest.fixture
def caught(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Catches what Quire logs, also where its logger keeps it to itself."""
    logger = logging.getLogger("quire")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.INFO)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("given", "level", "text"),
    [
        ({}, "INFO", r"KV store: up to .* in .*/quire/kv"),
        ({"enable_prefix_caching": False}, "INFO", "no KV store: prefix caching is off"),
        ({"enable_prefix_caching": False, "swap_space": 1}, "WARNING", "no KV store: prefix"),
    ],
    ids=str,
)
def test_one_line_of_the_log(
    model_dir: Path,
    caught: pytest.LogCaptureFixture,
    given: dict[str, Any],
    level: str,
    text: str,
) -> None:
    plan(model_dir, log_level="INFO", **given)
    # A logger that passes records on has each caught twice.
    [record] = {id(one): one for one in caught.records if "KV store" in one.message}.values()
    assert record.levelname == level
    assert re.match(text, record.message)


@pytest.mark.parametrize(
    "given",
    [
        {"kv_offloading_size": 2},
        {"swap_space": 2.0},
        {"swap_space": 2, "kv_offloading_size": 2, "kv_store_memory": 2 * GiB},
        {"kv_transfer_config": {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_port": 5,
            "kv_connector_extra_config": {"cpu_bytes_to_use": 2 * GiB, "eviction_policy": "arc"},
        }},
        {"kv_transfer_config": KVTransferConfig(
            "LMCacheConnectorV1", kv_role="kv_both",
            kv_connector_extra_config={"lmcache.max_local_cpu_size": 2},
        )},
    ],
    ids=str,
)  # fmt: skip
def test_memory_by_vllms_names(model_dir: Path, given: dict[str, Any]) -> None:
    found = store(model_dir, **given)
    assert found is not None
    assert found.memory_bytes == 2 * GiB
    assert found.disk_path is not None


def connector(name: str, role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    config = {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": extra}
    return {"kv_transfer_config": config}


def test_files_and_urls_by_vllms_names(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "there"
    shared = store(
        model_dir,
        **connector("SharedStorageConnector", "kv_consumer", shared_storage_path=str(path)),
    )
    assert shared is not None
    assert (shared.disk_path, shared.memory_bytes, shared.role) == (path, 0, "kv_consumer")
    tiers = [{"type": "fs", "root_dir": str(path)}]
    offloading = store(
        model_dir, **connector("OffloadingConnector", cpu_bytes_to_use=MiB, secondary_tiers=tiers)
    )
    assert offloading is not None
    assert (offloading.disk_path, offloading.memory_bytes) == (path, MiB)
    lmcache = store(
        model_dir,
        **connector(
            "LMCacheConnectorV1", local_cpu=False, local_disk=f"file://{path}",
            max_local_disk_size=3, remote_url="redis://h:1",
        ),
    )  # fmt: skip
    assert lmcache == KVStoreConfig(4, 0, path, 3 * GiB, ("redis://h:1",))
    assert store(model_dir, kv_transfer_config={"kv_connector": None}) is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_store": False, "kv_store_url": ["s3://b"]}, "kv_store_url contradict each other"),
        ({"kv_store_size": 1000}, r"kv_store_size is 1000 B, but one chunk needs 16.0 KiB"),
        ({"kv_store_memory": 1000}, "one chunk needs"),
        ({"swap_space": 1 << 20}, "swap_space is .* are available; give less"),
        ({"kv_store_tenant_size": 1000}, "kv_store_tenant_size is 1000 B, but one chunk needs"),
        ({"kv_store_tenant_size": 0}, "kv_store_tenant_size must be more than 0 bytes"),
        ({"kv_store_memory": -1}, "kv_store_memory must not be negative"),
        ({"kv_store_ttl": 0.0}, "kv_store_ttl must be more than 0"),
        ({"kv_store_url": ["localhost"]}, "kv_store_url: a KV tier must be a URL, such as redis://"),
        ({"kv_store_path": "/etc/passwd"}, "'/etc/passwd' is not a directory; give another"),
        ({"kv_offloading_backend": "lmcache"}, "use native, and set kv_store_path"),
        ({"kv_offloading_size": 1, "swap_space": 2}, "all set the size of the memory tier"),
        (connector("NixlConnector"), "'NixlConnector' is not supported: engines do not send"),
        (connector("MultiConnector"), "kv_store_memory, kv_store_path and kv_store_url together"),
        (connector("Own"), "unknown name. Connectors that work: OffloadingConnector"),
        (connector("OffloadingConnector"), "no cpu_bytes_to_use"),
        (connector("OffloadingConnector", cpu_bytes_to_use="1"), "cpu_bytes_to_use='1'"),
        (connector("OffloadingConnector", cpu_bytes_to_use=MiB, secondary_tiers=[{"type": "p2p"}]),
         "use one tier of type fs"),
        (connector("OffloadingConnector", "kv_some"), "use kv_both, kv_producer, kv_consumer"),
        (connector("SharedStorageConnector", other=1), "'other' in kv_connector_extra_config"),
        ({"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
                                 "kv_connector_module_path": "mine"}}, "the field has no meaning"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(model_dir: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        store(model_dir, **given)


def test_no_password_is_shown() -> None:
    urls = {
        "redis://me:secret@h:1/0": "redis://me:***@h:1/0", "redis://:secret@h": "redis://:***@h",
        "s3://bucket/a?key=secret": "s3://bucket/a?key=***", "redis://h:1/0": "redis://h:1/0",
    }  # fmt: skip
    found = describe(KVStoreConfig(1, MiB, remotes=tuple(urls)))
    assert found == ["1.0 MiB of memory", *urls.values()]


def test_a_bound_for_each_tenant(model_dir: Path) -> None:
    found = store(model_dir, kv_store_tenant_size=MiB)
    assert found is not None
    assert found.tenant_bytes == MiB


def test_memory_of_the_store_is_not_that_of_the_pool(model_dir: Path) -> None:
    """Both come out of what is available."""
    given = args(model_dir, kv_store_memory=3 * GiB, max_model_len=64)
    facts = gather_facts(given)
    memory = replace(facts.memory, available_bytes=4 * GiB)
    beside = settle(given, "llm", replace(facts, memory=memory))
    alone = settle(
        args(model_dir, max_model_len=64), "llm",
        replace(gather_facts(args(model_dir)), memory=replace(memory, available_bytes=GiB)),
    )  # fmt: skip
    assert beside.config.cache.num_blocks == alone.config.cache.num_blocks
    assert beside.config.kv_store is not None
    assert beside.config.kv_store.memory_bytes == 3 * GiB


def test_a_path_of_other_bytes_is_told_as_text() -> None:
    told = describe(KVStoreConfig(1, MiB, disk_path=Path("/kv/caf\udce9"), disk_bytes=GiB))[-1]
    assert told == "up to 1.00 GiB in /kv/caf\\udce9"
    told.encode()
