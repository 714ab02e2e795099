"""Sleeping: the memory really falls and comes back, and tokens stay the same."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams
from quire.config.engine_args import AsyncEngineArgs
from quire.errors import ConfigError
from quire.frontend.online.async_llm import AsyncLLM
from quire.llm import LLM
from quire.params import SamplingParams
from quire.units import MiB

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[number] * 480 for number in range(1, 17)]
KV_BYTES = 200 * MiB
"""Less than they have of K and V: 32 KiB a token."""
SHAPE = {
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 150_000,
}  # fmt: skip
"""Little to compute, much to keep."""
WEIGHT_BYTES = 60 * MiB
"""Less than there are."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("larger"), **SHAPE)


def options(model_dir: Path) -> dict[str, Any]:
    return {
        "model": str(model_dir), "backend": "cpu", "dtype": "float32", "max_model_len": 512,
        "kv_cache_memory_bytes": 2 * KV_BYTES, "max_num_batched_tokens": 256, "num_threads": 1,
    }  # fmt: skip


def resident_bytes(pid: int | str = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def tokens(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.long
def test_memory_falls_and_comes_back(model_dir: Path) -> None:
    with LLM(**options(model_dir)) as llm:
        wanted, full = tokens(llm), resident_bytes()
        llm.sleep(level=1)
        without_kv = resident_bytes()
        assert full - without_kv > KV_BYTES
        assert llm.llm_engine.is_sleeping()
        llm.sleep(level=2)
        assert without_kv - resident_bytes() > WEIGHT_BYTES
        assert llm.wake_up(tags=["weights"]) is False
        assert llm.wake_up(tags=["kv_cache"]) is True
        assert not llm.llm_engine.is_sleeping()
        assert tokens(llm) == wanted
        assert resident_bytes() - full < 50 * MiB
        llm.sleep(level=0)
        llm.release_kv_cache_memory()
        assert full - resident_bytes() > KV_BYTES
        llm.wake_up()
        assert tokens(llm) == wanted


@pytest.mark.sweep(1)
@pytest.mark.parametrize("engine_mode", ["thread", "process"])
async def test_an_engine_of_either_host_sleeps(model_dir: Path, engine_mode: Any) -> None:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**options(model_dir), disable_log_stats=True), engine_mode=engine_mode
    )
    pid = engine._client.pid if engine_mode == "process" else "self"  # type: ignore[attr-defined]

    async def one(prompt: list[int]) -> list[int]:
        stream: AsyncIterator[Any] = engine.generate(prompt, PARAMS, f"r{prompt[0]}")
        return [output async for output in stream][-1].outputs[0].token_ids

    async def every() -> list[list[int]]:
        return await asyncio.gather(*[one(prompt) for prompt in PROMPTS])

    try:
        wanted, full = await every(), resident_bytes(pid)
        await engine.reset_prefix_cache()
        kept = asyncio.create_task(every())
        while engine.metrics.num_in_flight < len(PROMPTS):
            await asyncio.sleep(0)
        await engine.sleep(level=2, mode="keep")
        assert full - resident_bytes(pid) > KV_BYTES + WEIGHT_BYTES
        assert await engine.is_sleeping()
        with pytest.raises(ConfigError, match=r"the engine is asleep .*: call wake_up first"):
            await engine.resume_generation()
        assert not kept.done()
        assert await engine.wake_up()
        assert await kept == wanted
        assert abs(resident_bytes(pid) - full) < 50 * MiB
        assert await engine.collective_rpc("progress") != [None]
        await engine.check_health()
    finally:
        engine.shutdown()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., LLM]:
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    return lambda: LLM(str(directory), backend="reference", max_model_len=128)


def test_calls_wait_until_the_engine_is_woken_up(tiny: Callable[..., LLM]) -> None:
    with tiny() as llm:
        wanted = llm.generate("a", PARAMS, use_tqdm=False)[0].outputs[0].token_ids
        llm.sleep(level=2)
        found: list[Any] = []
        waiting = [
            threading.Thread(
                target=lambda: found.append(llm.generate("a", PARAMS, use_tqdm=False)[0])
            )
            for _ in range(3)
        ]
        for thread in waiting:
            thread.start()
        queued = llm.enqueue("a", PARAMS, use_tqdm=False)
        waiting[0].join(0.1)
        assert found == []
        llm.wake_up()
        for thread in waiting:
            thread.join(30)
        assert [output.outputs[0].token_ids for output in found] == [wanted] * 3
        [output] = llm.wait_for_completion(use_tqdm=False)
        assert (output.request_id, output.outputs[0].token_ids) == (queued[0], wanted)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_what_is_queued_at_a_sleep(tiny: Callable[..., LLM], mode: Any) -> None:
    with tiny() as llm:
        [wanted] = llm.generate("a", PARAMS, use_tqdm=False)
        llm.enqueue("a", PARAMS, use_tqdm=False)
        llm.sleep(level=1, mode=mode)
        unfinished = llm.llm_engine.get_num_unfinished_requests()
        assert unfinished == (1 if mode == "keep" else 0)
        llm.wake_up()
        [output] = llm.wait_for_completion(use_tqdm=False)
        reason = "abort" if mode == "abort" else "length"
        assert output.outputs[0].finish_reason == reason
        if mode != "abort":
            assert output.outputs[0].token_ids == wanted.outputs[0].token_ids


def test_weights_are_loaded_again_when_asked_for(tiny: Callable[..., LLM]) -> None:
    with tiny() as llm:
        [wanted] = llm.generate("a", PARAMS, use_tqdm=False)
        llm.collective_rpc("reload_weights")
        assert llm.generate("a", PARAMS, use_tqdm=False)[0].outputs[0] == wanted.outputs[0]
        llm.sleep(level=2)
        llm.wake_up(tags=["weights"])
        llm.collective_rpc("reload_weights")
        assert llm.wake_up(tags=["kv_cache"])
        [found] = llm.generate("a", PARAMS, use_tqdm=False)
        assert found.outputs[0].token_ids == wanted.outputs[0].token_ids


def test_new_weights_in_the_files_are_another_model(tmp_path: Path) -> None:
    """What is cached of the old ones is found by nobody, also beyond the engine's own memory."""
    model = write_tiny_checkpoint(tmp_path / "model")
    with LLM(str(model), backend="reference", num_gpu_blocks_override=64) as llm:
        core = llm.llm_engine.engine_core
        [old] = llm.generate("a", PARAMS, use_tqdm=False)
        root = core.scheduler.kv.open().root
        llm.sleep(level=2)
        llm.wake_up()
        assert core.scheduler.kv.open().root == root
        other = write_tiny_checkpoint(tmp_path / "other", seed=5)
        shutil.copy(other / "model.safetensors", model)
        llm.sleep(level=1)
        llm.collective_rpc("reload_weights")
        llm.wake_up()
        assert core.scheduler.kv.open().root != root
        [new] = llm.generate("a", PARAMS, use_tqdm=False)
        assert new.outputs[0].token_ids != old.outputs[0].token_ids


def test_closing_ends_the_wait_of_those_who_are_asleep(tiny: Callable[..., LLM]) -> None:
    from quire.errors import EngineDeadError

    llm = tiny()
    llm.sleep(level=0)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            llm.generate("a", PARAMS, use_tqdm=False)
        except EngineDeadError as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.1)
    llm.close()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 2


WAITING: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate("a", PARAMS, use_tqdm=False),
    "chat": lambda llm: llm.chat(
        [{"role": "user", "content": "a"}], PARAMS, use_tqdm=False,
        chat_template="{{ messages[0]['content'] }}",
    ),
    "beam_search": lambda llm: llm.beam_search(["a"], BeamSearchParams(2, 2)),
    "wait_for_completion": lambda llm: llm.wait_for_completion(use_tqdm=False),
    "step": lambda llm: llm.llm_engine.step(),
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("state", ["paused", "asleep", "half awake"])
def test_a_call_that_would_wait_for_ever_is_refused(tiny: Callable[..., LLM], state: str) -> None:
    with tiny() as llm:
        [wanted] = llm.generate("a", PARAMS, use_tqdm=False)
        [before] = llm.enqueue("a", PARAMS, use_tqdm=False)
        llm.sleep(level=0 if state == "paused" else 2, mode="keep")
        if state == "half awake":
            llm.wake_up(tags=["weights"])
        [in_sleep] = llm.enqueue("a", PARAMS, use_tqdm=False)
        for call in WAITING.values():
            with pytest.raises(ConfigError, match=r"the engine is asleep.*call wake_up\(\)"):
                call(llm)
        assert llm.generate([], PARAMS, use_tqdm=False) == []
        llm.wake_up()
        found = llm.wait_for_completion(use_tqdm=False)
        assert [one.request_id for one in found] == [before, in_sleep]
        assert [one.outputs[0].token_ids for one in found] == [wanted.outputs[0].token_ids] * 2
        assert llm.generate("a", PARAMS, use_tqdm=False)[0].outputs[0] == wanted.outputs[0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["embed", "encode", "score"])
def test_a_sleeping_model_of_vectors_refuses_too(tmp_path: Path, name: str) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    calls: dict[str, Callable[[], Any]] = {
        "embed": lambda: llm.embed("a", use_tqdm=False),
        "encode": lambda: llm.encode("a", pooling_task="embed", use_tqdm=False),
        "score": lambda: llm.score("a", "b", use_tqdm=False),
    }
    with LLM(str(directory), backend="reference", max_model_len=128, runner="pooling") as llm:
        calls[name]()
        llm.sleep()
        with pytest.raises(ConfigError, match=r"call wake_up\(\)"):
            calls[name]()
        assert not llm.llm_engine.has_unfinished_requests()
        llm.wake_up()
        calls[name]()


@pytest.mark.timeout(20)
def test_outputs_that_are_there_are_returned_in_sleep(tiny: Callable[..., LLM]) -> None:
    with tiny() as llm:
        llm.enqueue("a", PARAMS, use_tqdm=False)
        llm.llm_engine.add_request("own", "a", PARAMS)
        llm.sleep(level=1, mode="wait")
        assert len(llm.wait_for_completion(use_tqdm=False)) == 1
        assert [one.finished for one in llm.llm_engine.step()][-1:] == [True]
        assert llm.llm_engine.step() == []


@pytest.mark.timeout(20)
def test_only_a_thread_that_could_be_woken_waits(tiny: Callable[..., LLM]) -> None:
    """The thread that let the engine sleep has ended, so that a new call would wait for ever;
    another thread that lives may wake it up."""
    found: list[Any] = []

    def run(call: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=lambda: found.append(call()))
        thread.start()
        return thread

    with tiny() as llm:
        run(lambda: llm.sleep(level=1)).join(30)
        with pytest.raises(ConfigError, match=r"call wake_up\(\)"):
            llm.generate("a", PARAMS, use_tqdm=False)
        llm.wake_up(tags=["scheduling"])
        found.clear()
        waiting = run(lambda: llm.generate("a", PARAMS, use_tqdm=False))
        waiting.join(0.1)
        assert found == []
        engine = llm.llm_engine
        engine.add_request("own", "a", PARAMS)
        stepping = run(engine.step)
        stepping.join(30)
        assert found == [[]]
        llm.wake_up()
        waiting.join(30)
        assert [one.outputs[0].finish_reason for one in found[1]] == ["length"]


@pytest.mark.timeout(20)
def test_callers_go_on_after_a_pause_that_failed(
    tiny: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had seen the pause, and wait for its end."""
    with tiny() as llm:
        engine, loop = llm.llm_engine, llm._calls.loop
        steps, pauses, fails = threading.Event(), threading.Event(), threading.Event()
        found: list[Any] = []

        def advance() -> list[Any]:
            monkeypatch.delattr(engine, "advance")
            steps.set()
            assert pauses.wait(10)
            return []

        def fail(_deliver: Any) -> None:
            pauses.set()
            assert fails.wait(10)
            raise KeyboardInterrupt

        def sleep() -> None:
            with pytest.raises(KeyboardInterrupt):
                llm.sleep(mode="wait")

        monkeypatch.setattr(engine, "advance", advance)
        monkeypatch.setattr(engine, "_run_to_the_end", fail)
        waiting = threading.Thread(
            target=lambda: found.extend(llm.generate("a", PARAMS, use_tqdm=False))
        )
        waiting.start()
        assert steps.wait(10)
        sleeping = threading.Thread(target=sleep)
        sleeping.start()
        while not any(one.is_waiting for one in loop._callers):
            waiting.join(0.001)
        fails.set()
        sleeping.join(10)
        waiting.join(10)
        assert [one.outputs[0].finish_reason for one in found] == ["length"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("moment", ["between steps", "while it waits"])
def test_a_call_is_refused_that_a_signal_handler_of_its_thread_lets_sleep(
    tiny: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its thread alone would wake the engine up."""
    monkeypatch.setattr("quire.frontend.offline.shared_loop._CHECK_S", 0.02)
    with tiny() as llm:
        [wanted] = llm.generate("a", PARAMS, use_tqdm=False)
        is_done, has_begun = threading.Event(), threading.Event()
        advance = llm.llm_engine.advance

        def step() -> list[Any]:
            signal.raise_signal(signal.SIGUSR1)
            return advance()

        def other() -> None:
            llm.sleep(level=0)
            has_begun.set()
            while not any(one.is_waiting for one in llm._calls.loop._callers):
                is_done.wait(0.001)
            os.kill(os.getpid(), signal.SIGUSR1)
            is_done.wait(20)

        thread = threading.Thread(target=other)
        before = signal.signal(signal.SIGUSR1, lambda *_: llm.sleep(level=1, mode="keep"))
        try:
            if moment == "while it waits":
                thread.start()
                assert has_begun.wait(10)
            else:
                monkeypatch.setattr(llm.llm_engine, "advance", step)
            with pytest.raises(ConfigError, match=r"the engine is asleep.*call wake_up\(\)"):
                llm.generate("a", PARAMS, use_tqdm=False)
        finally:
            signal.signal(signal.SIGUSR1, before)
            is_done.set()
        monkeypatch.undo()
        llm.wake_up()
        assert not llm.llm_engine.has_unfinished_requests()
        [found] = llm.generate("a", PARAMS, use_tqdm=False)
        assert found.outputs[0].token_ids == wanted.outputs[0].token_ids


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", ["keep", "wait"])
async def test_requests_of_a_sleeping_engine_are_counted_as_waiting(
    tmp_path: Path, mode: Any
) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny")
    args = AsyncEngineArgs(model=str(directory), backend="reference", max_model_len=128)
    engine = AsyncLLM.from_engine_args(args, engine_mode="thread")

    async def one(number: int) -> Any:
        stream: AsyncIterator[Any] = engine.generate("a", PARAMS, str(number))
        return [output async for output in stream][-1]

    async def counted(num_waiting: int) -> None:
        while (engine.metrics.latest.num_running, engine.metrics.latest.num_waiting) != (
            0,
            num_waiting,
        ):
            await asyncio.sleep(0.005)

    try:
        await engine.sleep(level=1, mode=mode)
        tasks = [asyncio.create_task(one(number)) for number in range(3)]
        await asyncio.wait_for(counted(3), 10)
        tasks[0].cancel()
        await asyncio.wait_for(counted(2), 10)
        await engine.wake_up()
        assert [(await task).outputs[0].finish_reason for task in tasks[1:]] == ["length"] * 2
        await asyncio.wait_for(counted(0), 10)
    finally:
        engine.shutdown()
