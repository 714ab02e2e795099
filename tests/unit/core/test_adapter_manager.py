"""`AdapterManager`: what is in memory while adapters are loaded, replaced and dropped."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from quire.adapters import LoRARequest
from quire.adapters.config import AdapterLimits
from quire.core.adapters.kinds import AdapterKind
from quire.core.adapters.manager import AdapterManager
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest


class Worker:
    """Has adapters by digest; the digest of an adapter is its path."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.has_read, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def load(self, path: str, name: str) -> dict[str, Any]:
        del name
        self.loaded.add(path)
        self.has_read.set()
        self.may_end.wait(60)
        return {"digest": path, "num_bytes": 1, "description": ""}


def load(manager: AdapterManager, path: str, ticket: str) -> None:
    request = LoRARequest("mine", 1, path, None, load_inplace=True)
    manager.begin_load(msgspec.to_builtins(request), ticket)


def manager_of(worker: Worker, num_adapters: int, **options: Any) -> AdapterManager:
    kind = AdapterKind(
        LoRARequest, lambda one: one.lora, worker.load, worker.loaded.discard,
        lambda one, found: msgspec.structs.replace(one, adapter=found["digest"]),
    )  # fmt: skip
    return AdapterManager(kind, AdapterLimits(num_adapters, 1), **options)


def request_of(name: str, adapter: LoRARequest) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name, prompt_token_ids=[1], sampling_params=SamplingParams(), arrival_time=0.0,
        lora=adapter,
    )  # fmt: skip


def test_a_version_that_is_loaded_again_is_not_dropped() -> None:
    """Its last request ends while the same numbers are loaded under a new version."""
    worker = Worker()
    manager = manager_of(worker, 100)
    manager.add(request_of("r", LoRARequest("mine", 1, "first")))
    manager.take_in()
    [ready] = manager.take_in(wait_s=10).ready
    assert ready.adapter == "first"
    load(manager, "second", "a")
    manager.take_in(wait_s=10)
    assert worker.loaded == {"first", "second"}  # the request uses the first
    worker.may_end.clear()
    worker.has_read.clear()
    load(manager, "first", "b")
    assert worker.has_read.wait(60)
    manager.release_ended(())
    worker.may_end.set()
    manager.take_in(wait_s=10)
    assert manager.load_result("b") == {"digest": "first", "is_new": True}
    assert worker.loaded == {"first"}
    assert manager.ids() == [1]
    manager.shutdown()


def test_a_load_that_is_asked_for_does_not_wait_for_a_stream_of_requests() -> None:
    """All of them need loads, and there is room for two adapters."""
    worker = Worker()
    manager = manager_of(worker, 2)
    manager.add(request_of("0", LoRARequest("a0", 2, "0")))
    manager.take_in()
    load(manager, "asked", "ticket")
    for number in range(1, 5):
        manager.add(request_of(str(number), LoRARequest(f"a{number}", 2 + number, str(number))))
        manager.take_in(wait_s=10)
        manager.release_ended(())
    assert manager.has("4"), "requests wait in each step"
    assert manager.load_result("ticket") is not None
    manager.shutdown()


def test_adapters_of_urgent_requests_are_loaded_first() -> None:
    manager = manager_of(Worker(), 1, level_of=lambda request: request.priority)
    for number, name in enumerate(("low", "urgent")):
        request = request_of(name, LoRARequest(name, number + 1, name))
        request.priority = -number
        manager.add(request)
    manager.take_in()
    assert [one.request_id for one in manager.take_in(wait_s=10).ready] == ["urgent"]
    assert not manager.take_in(wait_s=0.01).ready
    manager.release_ended(())
    manager.take_in()
    assert [one.request_id for one in manager.take_in(wait_s=10).ready] == ["low"]
    manager.shutdown()
