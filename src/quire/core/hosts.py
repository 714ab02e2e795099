"""Chooses whether the engine loop runs in a thread or in a process. Called by `AsyncLLM`."""

from __future__ import annotations

import os
from typing import Literal

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient
from quire.errors import ConfigError

EngineMode = Literal["auto", "thread", "process"]

DEFAULT_STEP_TIMEOUT_S = 120.0
_FEW_CORES = 8


def make_client(
    config: EngineConfig, mode: EngineMode, step_timeout_s: float, max_restarts: int = 0
) -> EngineCoreClient:
    """Starts the engine loop in the chosen host. Blocks while the model loads. `max_restarts`: of
    an engine that has died, which then is a process."""
    if config.parallel.data_parallel_size > 1 or (max_restarts and mode != "thread"):
        if mode == "thread":
            raise ConfigError(
                f"data_parallel_size={config.parallel.data_parallel_size} must be 1 with "
                "engine_mode='thread', which runs one engine; use auto or process"
            )
        from quire.core.parallel.client import ParallelClient

        return ParallelClient(config, step_timeout_s, max_restarts)
    if mode == "auto":
        mode = "thread" if (os.cpu_count() or 1) <= _FEW_CORES else "process"
    if mode == "process":
        from quire.core.process_host import ProcessHost

        return ProcessHost(config, step_timeout_s)
    from quire.core.client import ThreadHost
    from quire.core.engine_core import EngineCore

    return ThreadHost(lambda: EngineCore(config), step_timeout_s)
