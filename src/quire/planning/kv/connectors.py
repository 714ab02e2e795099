"""Meaning of vLLM's `kv_transfer_config`: some of its connectors become tiers of the KV store.

Called by `asked_store`. docs/kv_store.md has a table for users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from quire.config.kv_cache import KVRole
from quire.errors import ConfigError, quoted
from quire.units import GiB

_BETWEEN_ENGINES = (
    "engines do not send K/V to each other; they share it through a tier given by kv_store_url"
)
_OWN_PROCESS = "the store is part of the engine and has no separate process; see kv_store_url"
_REFUSED = {
    **dict.fromkeys(
        ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "P2pNcclConnector",
         "MooncakeConnector", "MoRIIOConnector"),
        _BETWEEN_ENGINES,
    ),
    **dict.fromkeys(
        ("LMCacheMPConnector", "MooncakeStoreConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
        _OWN_PROCESS,
    ),
    "MultiConnector": "set kv_store_memory, kv_store_path and kv_store_url together instead",
    "HiSparseConnector": "no supported model has sparse attention",
    "DecodeBenchConnector": "Quire never makes up K/V; use quire bench with load_format=dummy",
    "ExampleHiddenStatesConnector": "hidden states are not kept",
}  # fmt: skip
_NEUTRAL = {
    "engine_id", "kv_buffer_device", "kv_port", "enable_permute_local_kv", "kv_load_failure_policy",
}  # fmt: skip
"""Fields without an effect: K/V that cannot be loaded is always computed."""


@dataclass(frozen=True, slots=True)
class ConnectorStore:
    """Tiers that a connector stands for."""

    memory_bytes: int = 0
    path: str | None = None
    disk_bytes: int | None = None
    remotes: tuple[str, ...] = ()
    role: KVRole = "kv_both"


def connector_store(config: Mapping[str, Any] | None) -> ConnectorStore | None:
    """Convert the configuration; None if it names neither a connector nor a role. Raises
    ConfigError for unsupported connectors, fields and values."""
    if not config or (config.get("kv_connector") is None and config.get("kv_role") is None):
        return None
    name, role = config.get("kv_connector"), config.get("kv_role")
    for key in config:
        if key not in {*_NEUTRAL, "kv_connector", "kv_role", "kv_connector_extra_config"} and (
            config[key] is not None
        ):
            raise _refused(key, "the field has no meaning in Quire")
    if name is not None and name not in _CONNECTORS:
        raise _refused(f"kv_connector={quoted(name)}", _REFUSED.get(name, "unknown name"))
    roles: dict[Any, KVRole] = {known: known for known in get_args(KVRole)}
    if role not in roles:
        raise _refused(f"kv_role={quoted(role)}", f"use {', '.join(roles)}")
    extra = config.get("kv_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise _refused("kv_connector_extra_config", "it must be a JSON object")
    tiers = ConnectorStore() if name is None else _CONNECTORS[name](extra)
    return replace(tiers, role=roles[role])


def _refused(what: str, reason: str) -> ConfigError:
    names = ", ".join(_CONNECTORS)
    return ConfigError(
        f"kv_transfer_config: {what} is not supported: {reason}. Connectors that work: {names}"
    )


def _offloading(extra: Mapping[str, Any]) -> ConnectorStore:
    """Read `cpu_bytes_to_use`, and a directory among `secondary_tiers`."""
    _check_keys(extra, _OFFLOADING_KEYS)
    memory_bytes = _size(extra, "cpu_bytes_to_use", 1)
    if not memory_bytes:
        raise _refused("no cpu_bytes_to_use", "it must give the size of the memory tier in bytes")
    found = ConnectorStore(memory_bytes=memory_bytes)
    for tier in extra.get("secondary_tiers") or ():
        if not isinstance(tier, Mapping) or tier.get("type") != "fs" or found.path:
            raise _refused(
                f"secondary tier {quoted(tier)}",
                "use one tier of type fs, or kv_store_url for others",
            )
        found = replace(found, path=_text(tier, "root_dir"))
    return found


def _lmcache(extra: Mapping[str, Any]) -> ConnectorStore:
    """Read LMCache's settings, with or without the prefix `lmcache.`. Its default is 5 GiB of
    memory."""
    named = {key.removeprefix("lmcache."): extra[key] for key in extra}
    _check_keys(named, _LMCACHE_KEYS)
    in_memory = named.get("local_cpu", True) is not False
    disk, remote = _text(named, "local_disk"), _text(named, "remote_url")
    return ConnectorStore(
        memory_bytes=_size(named, "max_local_cpu_size", GiB, 5 * GiB) if in_memory else 0,
        path=disk.removeprefix("file://") if disk else None,
        disk_bytes=_size(named, "max_local_disk_size", GiB) or None,
        remotes=(remote,) if remote else (),
    )


def _shared_storage(extra: Mapping[str, Any]) -> ConnectorStore:
    _check_keys(extra, {"shared_storage_path"})
    return ConnectorStore(path=_text(extra, "shared_storage_path") or "/tmp")  # vLLM's default


_OFFLOADING_KEYS = {
    "cpu_bytes_to_use", "secondary_tiers", "spec_name", "block_size", "blocks_per_chunk",
    "eviction_policy", "offload_prompt_only", "store_threshold", "max_tracker_size", "backpressure",
    "lazy_offload", "self_describing_kv_events",
}  # fmt: skip
"""Only the first two keys have an effect; the others only tune vLLM's speed."""
_LMCACHE_KEYS = {
    "local_cpu", "max_local_cpu_size", "local_disk", "max_local_disk_size", "remote_url",
    "chunk_size", "remote_serde", "cache_policy", "lmcache_rpc_port", "save_decode_cache",
    "save_unfull_chunk", "discard_partial_chunks", "enable_async_loading", "use_layerwise",
    "pre_caching_hash_algorithm",
}  # fmt: skip
"""Keys after `remote_url` only tune LMCache's speed and have no effect."""

_CONNECTORS: dict[str, Callable[[Mapping[str, Any]], ConnectorStore]] = {
    "OffloadingConnector": _offloading,
    "SimpleCPUOffloadConnector": _offloading,
    "LMCacheConnectorV1": _lmcache,
    "SharedStorageConnector": _shared_storage,
    "ExampleConnector": _shared_storage,
}
"""ExampleConnector is vLLM's newer name of SharedStorageConnector."""


def _check_keys(extra: Mapping[str, Any], known: set[str]) -> None:
    for key in extra:
        if key not in known:
            raise _refused(f"{quoted(key)} in kv_connector_extra_config", "it has no meaning here")


def _size(values: Mapping[str, Any], key: str, unit: int, default: int = 0) -> int:
    value = values.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**62:
        raise _refused(f"{key}={quoted(value)}", "it must be a number, 0 or more")
    return int(value * unit)


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise _refused(f"{key}={quoted(value)}", "it must be a string")
    return value or None
