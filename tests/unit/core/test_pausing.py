"""Pausing and sleeping in the core: who runs, who waits, what is computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import ConfigError
from quire.protocol import EngineCoreOutput

from .test_engine_core import CountingExecutor, request


class SleepyExecutor(CountingExecutor):
    """Notes what it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.fingerprint = ""

    def call(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        self.calls.append((method, *args))
        return [self.fingerprint] if method == "restore_memory" else [kwargs or None]

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self.calls.append(("write_blocks", block_ids, data))


@pytest.fixture
def executor() -> SleepyExecutor:
    return SleepyExecutor()


@pytest.fixture
def core(make_config: Callable[..., EngineConfig], executor: SleepyExecutor) -> EngineCore:
    return EngineCore(make_config(max_num_seqs=2), executor)


def run(core: EngineCore) -> list[EngineCoreOutput]:
    """Steps to the end; the outputs that ended a request."""
    ended = []
    while core.has_unfinished_requests():
        ended += [one for one in core.step().outputs if one.finish_reason is not None]
        core.scheduler.check_integrity()
    return ended


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_new_requests_wait_and_others_go_on(core: EngineCore, mode: str) -> None:
    core.add_request(request("old"))
    core.commands["pause"](mode)
    core.add_request(request("new"))
    core.add_request(request("aborted"))
    core.scheduler.check_integrity()
    assert [one.request_id for one in run(core)] == ["old"]
    core.abort_requests(["aborted"])
    assert core.step().outputs == []
    assert core.commands["is_paused"]()
    core.commands["resume"]()
    assert [one.request_id for one in run(core)] == ["new"]
    assert not core.commands["is_sleeping"]()


def test_kept_requests_stay_where_they_are(core: EngineCore) -> None:
    core.add_request(request("kept", max_tokens=9))
    core.step()
    core.commands["pause"]("keep")
    assert not core.commands["is_busy"]()
    assert core.step().outputs == []
    assert core.commands["reset_prefix_cache"]() is False
    core.commands["resume"]()
    [end] = run(core)
    assert (end.num_preemptions, end.finish_reason) == (0, "length")


def test_running_requests_can_be_reset(core: EngineCore) -> None:
    core.add_request(request("a"))
    core.step()
    assert core.commands["reset_prefix_cache"](reset_running_requests=True) is True
    core.scheduler.check_integrity()
    assert [(one.request_id, one.num_preemptions) for one in run(core)] == [("a", 1)]


def test_sleeping_takes_memory_and_waking_up_gives_it_back(
    core: EngineCore, executor: SleepyExecutor
) -> None:
    commands = core.commands
    with pytest.raises(ConfigError, match="in a pause only"):
        commands["sleep"](1)
    core.add_request(request("kept"))
    core.step()
    commands["pause"]("keep")
    commands["sleep"](1)
    commands["sleep"](2)
    assert executor.calls == [("release_memory", ["kv_cache"]), ("release_memory", ["weights"])]
    with pytest.raises(ConfigError, match=r"asleep \(kv_cache, weights\): call wake_up"):
        commands["resume"]()
    with pytest.raises(ConfigError, match="requires that no memory is released yet"):
        commands["release_kv_cache_memory"]()
    executor.calls.clear()
    assert commands["wake_up"](["weights"]) is False
    assert commands["wake_up"](["weights", "scheduling"]) is False
    assert commands["is_sleeping"]()
    assert commands["wake_up"](None) is True
    assert executor.calls == [("restore_memory", ["weights"]), ("restore_memory", ["kv_cache"])]
    assert [(one.request_id, one.num_preemptions) for one in run(core)] == [("kept", 1)]


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_nothing_runs_while_memory_is_released(core: EngineCore, mode: str) -> None:
    """Also if another pause, which lets requests finish, follows the one that kept them."""
    core.add_request(request("kept"))
    core.step()
    core.commands["pause"]("keep")
    core.commands["sleep"](2)
    core.commands["pause"](mode)
    assert not core.commands["is_busy"]()
    assert run(core) == []
    core.commands["wake_up"](["kv_cache"])
    assert run(core) == []
    core.commands["wake_up"](["weights"])
    assert [(one.request_id, one.num_preemptions) for one in run(core)] == [("kept", 1)]


def test_the_cache_can_be_released_again_while_the_weights_are(
    core: EngineCore, executor: SleepyExecutor
) -> None:
    core.commands["pause"]("keep")
    core.commands["sleep"](2)
    assert core.commands["wake_up"](["kv_cache"]) is False
    executor.calls.clear()
    core.commands["sleep"](2)
    assert executor.calls == []  # the workers have no model whose cache could be released
    assert core.commands["wake_up"](None) is True
    assert executor.calls == [("restore_memory", ["kv_cache", "weights"])]


def test_blocks_of_other_weights_have_other_keys(
    core: EngineCore, executor: SleepyExecutor
) -> None:
    """Also those of requests that were there before: they compute their tokens again."""
    core.add_request(request("running"))
    core.step()
    core.add_request(request("waiting"))
    before = {one.blocks.root for one in core.scheduler.states.by_id.values()}
    for fingerprint, count in (("new", 2), ("new", 2), ("newer", 3)):
        executor.fingerprint = fingerprint
        core.commands["pause"]("keep")
        core.commands["sleep"](2)
        core.commands["wake_up"](None)
        before |= {one.blocks.root for one in core.scheduler.states.by_id.values()}
        assert len(before) == count
        assert core.scheduler.kv.open().root in before
    run(core)


def test_memory_that_was_given_back_is_made_ready_again(
    core: EngineCore, executor: SleepyExecutor
) -> None:
    def written() -> list[int]:
        while core.use_idle_time():
            pass
        assert not core.has_idle_work()
        found = [one for name, blocks, *_ in executor.calls if name == "write_blocks"
                 for one in blocks]  # fmt: skip
        executor.calls.clear()
        return found

    assert core.has_idle_work()
    first = written()
    assert first
    core.commands["pause"]("keep")
    core.commands["sleep"](1)
    executor.calls.clear()
    assert not core.has_idle_work()
    assert not written()
    core.commands["wake_up"](None)
    executor.calls.clear()
    assert written() == first


def test_level_0_takes_nothing(core: EngineCore, executor: SleepyExecutor) -> None:
    core.commands["pause"]("abort")
    core.commands["sleep"](0)
    assert core.commands["is_sleeping"]()
    core.commands["release_kv_cache_memory"]()
    assert executor.calls == [("release_memory", ["kv_cache"])]
    assert core.commands["wake_up"](["kv_cache"]) is True
    assert not core.commands["is_sleeping"]()


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("sleep", 3, "level must be 0"),
        ("sleep", True, "level must be 0"),
        ("pause", "later", "mode must be abort, wait or keep, got 'later'"),
        ("wake_up", ["kv"], r"tags must be a list of weights, kv_cache, scheduling.*\['kv'\]"),
        ("wake_up", [], "tags must be a list"),
    ],
)
def test_bad_arguments(core: EngineCore, command: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        core.commands[command](given)


def test_a_call_of_the_workers(core: EngineCore, executor: SleepyExecutor) -> None:
    assert core.commands["collective_rpc"]("name", (1, 2), {"a": 3}) == [{"a": 3}]
    assert executor.calls == [("name", 1, 2)]


@pytest.mark.parametrize("name", ["call", "close", "step", "release_memory", "restore_memory"])
def test_what_the_engine_calls_alone(core: EngineCore, executor: SleepyExecutor, name: str) -> None:
    with pytest.raises(ConfigError, match=f"only the engine may call {name}"):
        core.commands["collective_rpc"](name)
    assert executor.calls == []
