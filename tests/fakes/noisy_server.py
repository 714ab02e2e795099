"""`quire serve` in which every source of standard error speaks with every request. A script."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from quire.cli import main
from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, ThreadHost
from quire.core.engine_core import EngineCore
from quire.core.process_host import ProcessHost
from quire.frontend.online import async_llm, online_requests
from quire.log import get_logger

FILL = " ." * 500
_begin = online_requests.OnlineRequests.begin


class NoisyCore(EngineCore):
    """Logs and warns whenever it is given a request."""

    def add_request(self, request: Any) -> None:
        get_logger("quire.core").warning("noise of engine%s", FILL)
        warnings.warn_explicit(f"engine warning {request.request_id}{FILL}", Warning, "x", 1)
        super().add_request(request)


def make_client(
    config: EngineConfig, mode: str, step_timeout_s: float, max_restarts: int
) -> EngineCoreClient:
    """In place of the function of the same name; an engine that dies stays dead."""
    del max_restarts
    if mode == "process":
        return ProcessHost(config, step_timeout_s, core_factory="noisy_server:NoisyCore")
    return ThreadHost(lambda: NoisyCore(config), step_timeout_s)


def noisy_begin(self: Any, stream: Any) -> None:
    """Makes all the others speak."""

    def fail() -> None:
        raise ValueError(f"noise of thread{FILL}")

    warnings.warn_explicit(
        f"noise of warning {stream.record.input.request_id}{FILL}", Warning, "x", 1
    )
    for name in ("uvicorn", "asyncio", "other"):
        logging.getLogger(name).error("noise of %s%s", name, FILL)
    print(f"noise of print{FILL}", file=sys.stderr)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    _begin(self, stream)


if __name__ == "__main__":
    async_llm.make_client = make_client  # type: ignore[assignment]
    online_requests.OnlineRequests.begin = noisy_begin  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
