"""`kv_events_config`: where KV events are published. Called by `gather_facts`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from quire.config.kv_cache import KVEventsConfig
from quire.errors import ConfigError, quoted
from quire.suggest import did_you_mean

_TYPES = {
    "enable_kv_cache_events": bool, "publisher": str, "endpoint": str, "replay_endpoint": str,
    "buffer_steps": int, "hwm": int, "max_queue_size": int, "topic": str,
}  # fmt: skip
_MOST = 10_000_000
_MAX_TOPIC = 1024
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d{1,5})")
_IPC = re.compile(r"ipc://[^\0]{1,100}")


def kv_events_config(given: Mapping[str, Any] | None) -> KVEventsConfig | None:
    """Check the configuration. None: KV events are off. Raises ConfigError for unknown fields and
    invalid values."""
    fields = {name: value for name, value in (given or {}).items() if value is not None}
    for name, value in fields.items():
        if name not in _TYPES:
            raise _error(f"{quoted(name)} is not known{did_you_mean(name, [*_TYPES])}")
        if type(value) is not _TYPES[name]:
            raise _error(f"{name}={quoted(value)} must be of type {_TYPES[name].__name__}")
    config = KVEventsConfig(**fields)
    if config.publisher not in (None, "null", "zmq"):
        raise _error(f"publisher={quoted(config.publisher)} is not known; use zmq or null")
    if not config.enable_kv_cache_events or config.publisher == "null":
        return None
    _check_endpoint("endpoint", config.endpoint)
    if config.replay_endpoint is not None:
        _check_endpoint("replay_endpoint", config.replay_endpoint)
    for name in ("buffer_steps", "hwm", "max_queue_size"):
        if not 1 <= getattr(config, name) <= _MOST:
            raise _error(f"{name} must be from 1 to {_MOST}, got {getattr(config, name)}")
    if len(config.topic.encode("utf-8", "surrogatepass")) > _MAX_TOPIC:
        raise _error(f"topic must have at most {_MAX_TOPIC} bytes")
    return dataclasses.replace(config, publisher="zmq")


def check_events_of_engines(config: KVEventsConfig | None, num_engines: int) -> None:
    """Raises ConfigError if several engines cannot have endpoints of their own."""
    if config is None or num_engines == 1:
        return
    found: dict[str, str] = {}
    for rank in range(num_engines):
        own = config.of_rank(rank)
        for name in ("endpoint", "replay_endpoint"):
            endpoint = getattr(own, name)
            if endpoint is None:
                continue
            _check_endpoint(f"{name} of engine {rank}", endpoint)
            if endpoint in found:
                raise ConfigError(
                    f"kv_events_config: {quoted(endpoint)} is the {name} of engine {rank} and the "
                    f"{found[endpoint]}: each of the {num_engines} engines adds its number to the "
                    f"port; choose ports that are at least {num_engines} apart"
                )
            found[endpoint] = f"{name} of engine {rank}"


def _check_endpoint(name: str, endpoint: str) -> None:
    tcp = _TCP.fullmatch(endpoint)
    if not (_IPC.fullmatch(endpoint) or (tcp and 1 <= int(tcp[2]) <= 65535)):
        raise _error(f"{name}={quoted(endpoint)} must be tcp://HOST:PORT or ipc://PATH")


def _error(what: str) -> ConfigError:
    return ConfigError(
        f'kv_events_config: {what}; try {{"enable_kv_cache_events": true, "publisher": "zmq", '
        '"endpoint": "tcp://127.0.0.1:5557"}'
    )
