"""Failures, closing, aborts and Ctrl+C in one thread: those whom they concern are told, the
others go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from quire.errors import EngineDeadError, EngineGenerateError
from quire.frontend.offline.calls import CallOptions
from quire.frontend.offline.llm_engine import LLMEngine
from quire.llm import LLM

from .conftest import WAIT_S, Bar, Slowly, greedy, in_thread, is_clean, make, tokens, until


def test_an_exception_in_one_thread_is_no_others(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who steps leaves by an exception; the other's requests go on."""
    slowly = Slowly(llm, monkeypatch)

    def fail() -> None:
        raise ZeroDivisionError

    params = [greedy(2), greedy(50)]
    failing = in_thread(lambda: llm.generate(["a", "b"], params, use_tqdm=Bar(fail)))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    other = in_thread(lambda: llm.generate("c", greedy(30), use_tqdm=False))
    until(lambda: llm.llm_engine._lock._door.locked())
    slowly.let_go()
    with pytest.raises(ZeroDivisionError):
        failing.result(WAIT_S)
    assert [len(found) for found in tokens(other.result(WAIT_S))] == [30]
    assert is_clean(llm)


def test_a_bar_that_cannot_be_made_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(TypeError):
        llm.generate("a", greedy(), use_tqdm=lambda: None)
    assert is_clean(llm)


def test_a_bar_that_cannot_be_closed_leaves_nothing_behind(llm: LLM) -> None:
    """Its output is a pipe that nobody reads, say."""

    class Broken(list[str]):
        def close(self) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        llm.enqueue(["a", "b"], greedy(), use_tqdm=lambda items, **_: Broken(items))
    assert is_clean(llm)
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_step_that_fails_is_told_to_all_who_wait(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly(llm, monkeypatch)
    first = in_thread(lambda: llm.generate("a", greedy(100), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    second = in_thread(lambda: llm.generate("b", greedy(100), use_tqdm=False))
    until(lambda: llm.llm_engine._lock._door.locked())

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    slowly.let_go(pause_s=0.02)
    until(lambda: len(llm._calls.loop._callers) == 2)
    monkeypatch.setattr(llm.llm_engine.engine_core.executor._worker, "step", fail)
    errors = [one.exception(WAIT_S) for one in (first, second)]
    kinds = {type(error) for error in errors}
    assert kinds == {ZeroDivisionError, EngineGenerateError}
    assert all("on purpose" in str(error) for error in errors)
    monkeypatch.undo()
    assert llm.llm_engine.get_num_unfinished_requests() == 0


def test_a_step_that_fails_before_a_call_waits_is_told_to_it_too(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.enqueue("lost", greedy(50))
    llm.generate("a", greedy(2), use_tqdm=False)

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.engine_core.executor._worker, "step", fail)
        with pytest.raises(ZeroDivisionError):
            in_thread(lambda: llm.generate("b", greedy(), use_tqdm=False)).result(WAIT_S)
    with pytest.raises(EngineGenerateError, match="on purpose"):
        llm.wait_for_completion(use_tqdm=False)


def test_a_step_that_fails_is_told_to_a_call_that_is_busy_with_an_output(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy, may_go_on = threading.Event(), threading.Event()

    def collect() -> Any:
        def on_output(_: Any) -> None:
            is_busy.set()
            assert may_go_on.wait(WAIT_S)

        tickets = llm._add(["a", "b"], 2, [greedy(1), greedy(50)], CallOptions(), "prompts")
        return llm._calls.loop.collect(tickets, on_output)

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    busy = in_thread(collect)
    assert is_busy.wait(WAIT_S)
    monkeypatch.setattr(llm.llm_engine.engine_core.executor, "submit", fail)
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: llm.generate("c", greedy(), use_tqdm=False)).result(WAIT_S)
    may_go_on.set()
    with pytest.raises(EngineGenerateError, match="on purpose"):
        busy.result(WAIT_S)


def test_closing_from_another_thread_is_told_to_all_who_wait(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make(model_dir)
    slowly = Slowly(llm, monkeypatch)
    waiting = [in_thread(lambda: llm.generate("a", greedy(100), use_tqdm=False)) for _ in range(3)]
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    closing = in_thread(llm.close)
    slowly.let_go()
    for one in waiting:
        with pytest.raises(EngineDeadError, match="was shut down; create a new one"):
            one.result(WAIT_S)
    closing.result(WAIT_S)


def test_every_call_after_close_is_refused(model_dir: Path) -> None:
    llm = make(model_dir)
    llm.enqueue("a", greedy())
    llm.close()
    chat = [{"role": "user", "content": "hi"}]
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate("a", greedy(), use_tqdm=False),
        lambda: llm.chat(chat, greedy(), use_tqdm=False),
        lambda: llm.enqueue("a", greedy()),
        lambda: llm.wait_for_completion(use_tqdm=False),
        llm.reset_prefix_cache,
        lambda: llm.llm_engine.add_request("1", "a", greedy()),
        llm.llm_engine.step,
        llm.llm_engine.do_log_stats,
    ]
    for call in calls:
        with pytest.raises(EngineDeadError, match="was shut down; create a new one"):
            call()
    llm.llm_engine.abort_all()
    llm.llm_engine.abort_request("1")
    llm.close()


def test_an_abort_from_another_thread_is_an_output_that_says_so(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly(llm, monkeypatch)
    waiting = in_thread(lambda: llm.generate(["a", "b"], greedy(20), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    aborting = in_thread(lambda: llm.llm_engine.abort_request("1"))
    until(lambda: llm.llm_engine._lock._door.locked())
    slowly.let_go()
    aborting.result(WAIT_S)
    outputs = waiting.result(WAIT_S)
    assert [output.prompt for output in outputs] == ["a", "b"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "abort"]


def test_ctrl_c_in_one_call_and_the_others_go_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread steps for both, and leaves; what it enqueued before is still there."""
    slowly = Slowly(llm, monkeypatch)
    llm.enqueue("kept", greedy())
    others: list[Future[Any]] = []

    def press() -> None:
        assert slowly.steps_begun.acquire(timeout=WAIT_S)
        others.append(in_thread(lambda: llm.generate("b", greedy(30), use_tqdm=False)))
        until(lambda: llm.llm_engine._lock._door.locked())
        os.kill(os.getpid(), signal.SIGINT)
        slowly.let_go()

    pressing = in_thread(press)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", greedy(100), use_tqdm=False)
    pressing.result(WAIT_S)
    assert [len(found) for found in tokens(others[0].result(WAIT_S))] == [30]
    assert [one.prompt for one in llm.wait_for_completion(use_tqdm=False)] == ["kept"]
    assert is_clean(llm)


def test_ctrl_c_while_another_thread_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly = Slowly(llm, monkeypatch)
    other = in_thread(lambda: llm.generate("b", greedy(110), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)

    def press() -> None:
        until(lambda: llm.llm_engine._lock._door.locked())
        slowly.let_go(pause_s=0.02)
        until(lambda: len(llm._calls.loop._callers) == 2)
        os.kill(os.getpid(), signal.SIGINT)
        slowly.pause_s = 0.0

    pressing = in_thread(press)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("a", greedy(100), use_tqdm=False)
    pressing.result(WAIT_S)
    assert [len(found) for found in tokens(other.result(WAIT_S))] == [110]
    assert is_clean(llm)


def test_an_engine_stepped_by_hand_from_several_threads(llm: LLM) -> None:
    """Outputs go to whoever steps, each once; the books stay right."""
    engine: LLMEngine = llm.llm_engine
    seen: list[str] = []

    def work(number: int) -> None:
        for index in range(5):
            engine.add_request(f"{number}-{index}", f"prompt {number}", greedy(4))
            while engine.has_unfinished_requests():
                seen.extend(one.request_id for one in engine.step() if one.finished)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6), timeout=WAIT_S))
    assert sorted(seen) == sorted(f"{number}-{index}" for number in range(6) for index in range(5))
    assert is_clean(llm)


def test_ctrl_c_loses_no_output_of_an_engine_stepped_by_hand(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llm.llm_engine
    execute = engine.engine_core.executor._worker.step

    def pressed_in_the_middle(plan: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return execute(plan)

    engine.add_request("one", "a", greedy(1))
    monkeypatch.setattr(engine.engine_core.executor._worker, "step", pressed_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    monkeypatch.undo()
    assert engine.has_unfinished_requests()
    assert [one.request_id for one in engine.step()] == ["one"]
    assert is_clean(llm)
