"""`quire` with the core of `faulty_core.py`, in either engine mode. Run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faulty_core import FaultyCore

from quire.cli import main
from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, ThreadHost
from quire.core.process_host import ProcessHost
from quire.frontend.online import async_llm


def make_client(
    config: EngineConfig, mode: str, step_timeout_s: float, max_restarts: int
) -> EngineCoreClient:
    """In place of the function of the same name; an engine that dies stays dead."""
    del max_restarts
    if mode == "process":
        return ProcessHost(config, step_timeout_s, core_factory="faulty_core:FaultyCore")
    return ThreadHost(lambda: FaultyCore(config), step_timeout_s)


async_llm.make_client = make_client  # type: ignore[assignment]
sys.exit(main(sys.argv[1:]))
