"""A worker binds the thread that made it to the cores that were named, and no other thread."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs
from quire.config.records import EngineConfig
from quire.planning.plan import build_engine_config
from quire.worker import Worker


def cores_of_maker(config: EngineConfig) -> set[int]:
    """The cores of a thread that has made a worker."""
    found: list[set[int]] = []

    def make() -> None:
        worker = Worker(config)
        found.append(os.sched_getaffinity(0))
        worker.close()

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


def test_the_calling_thread_alone_is_bound(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path)
    args = EngineArgs(str(model), backend="reference", kv_cache_memory_bytes=1 << 20)
    config = build_engine_config(args)
    allowed = os.sched_getaffinity(0)
    assert cores_of_maker(config) == allowed
    last = max(allowed)
    device = dataclasses.replace(config.device, cores=(last,))
    assert cores_of_maker(dataclasses.replace(config, device=device)) == {last}
    assert os.sched_getaffinity(0) == allowed
