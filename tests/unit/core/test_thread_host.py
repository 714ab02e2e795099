"""A start of the engine's thread that is interrupted."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fake_core import FakeCore

from quire.core.client import ThreadHost


def test_an_engine_whose_start_was_interrupted_ends() -> None:
    """Nobody has the host, so that nobody could end its thread."""
    has_ended = threading.Event()

    class Core(FakeCore):
        def shutdown(self) -> None:
            super().shutdown()
            has_ended.set()

    def make() -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        interrupted.wait(30)
        return Core(config)

    config: Any = SimpleNamespace(
        model=SimpleNamespace(model="m"), scheduler=SimpleNamespace(max_num_seqs=1)
    )
    interrupted = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        ThreadHost(make, step_timeout_s=60.0)
    interrupted.set()
    assert has_ended.wait(30)
