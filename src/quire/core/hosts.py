"""Where the engine loop lives: the choice between the homes. Called by `AsyncLLM`."""

from __future__ import annotations

import os
from typing import Literal

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient

EngineHome = Literal["auto", "thread", "process"]

DEFAULT_STEP_TIMEOUT_S = 120.0
_FEW_CORES = 8


def make_client(config: EngineConfig, home: EngineHome, step_timeout_s: float) -> EngineCoreClient:
    """The engine loop in the home that was chosen. Blocks while the model loads."""
    if home == "auto":
        home = "thread" if (os.cpu_count() or 1) <= _FEW_CORES else "process"
    if home == "process":
        from quire.core.process_host import ProcessHome

        return ProcessHome(config, step_timeout_s)
    from quire.core.engine_core import EngineCore
    from quire.core.thread_host import ThreadHome

    return ThreadHome(lambda: EngineCore(config), step_timeout_s)
