"""Connects to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.log import get_logger

logger = get_logger(__name__)

_LEAST_CPUS = 64
"""A cluster of this process alone does not limit its ranks, as `mp` does not."""
_OBJECT_STORE_BYTES = 80 << 20
"""About the least that Ray takes; Quire keeps nothing in it."""


def connect(config: EngineConfig) -> Any:
    """The module `ray`, connected to a cluster: the one that this process uses already, the one of
    RAY_ADDRESS, the one that runs on this machine, or a new one. Raises ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "distributed_executor_backend='ray' needs Ray: pip install 'quire-engine[ray]' "
            f"({error})"
        ) from None
    if ray.is_initialized():
        return ray
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
        return ray
    except ConnectionError as error:
        if os.environ.get("RAY_ADDRESS"):
            raise ConfigError(f"RAY_ADDRESS: no Ray cluster can be reached: {error}") from None
    logger.info("no Ray cluster runs on this machine; starting one for this process")
    os.environ.setdefault("RAY_worker_niceness", "0")  # otherwise ranks have the lowest priority
    num_cpus = config.parallel.world_size * config.device.num_threads
    ray.init(
        num_cpus=max(num_cpus, _LEAST_CPUS),
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
    )
    return ray
