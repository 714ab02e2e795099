"""An engine that several threads use, and ways to use it so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams

WAIT_S = 120


def greedy(max_tokens: int = 6) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def make(model_dir: Path, **changes: Any) -> LLM:
    options = {"backend": "reference", "max_model_len": 128, "max_num_seqs": 16, **changes}
    return LLM(str(model_dir), **options)


@pytest.fixture
def llm(model_dir: Path) -> Iterator[LLM]:
    with make(model_dir) as made:
        yield made


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def is_clean(llm: LLM) -> bool:
    core = llm.llm_engine.engine_core
    core.scheduler.check_integrity()
    return not core.has_unfinished_requests() and not llm.llm_engine.has_unfinished_requests()


class Slowly:
    """An engine whose steps begin only when they may, so that a test can act between two."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps_begun = threading.Semaphore(0)
        self.may_step = threading.Semaphore(0)
        self.num_steps = 0
        self.pause_s = 0.0
        core = llm.llm_engine.engine_core
        idle_time = llm.llm_engine._idle_time  # its thread waits for the engine as a call does
        until(lambda: not idle_time._is_working)
        step = core.step

        def slow_step() -> Any:
            self.num_steps += 1
            time.sleep(self.pause_s)
            self.steps_begun.release()
            assert self.may_step.acquire(timeout=WAIT_S)
            return step()

        monkeypatch.setattr(core, "step", slow_step)

    def let_go(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.may_step.release(10_000)


class Bar:
    """A progress bar that calls a function for every finished prompt."""

    n = 0

    def __init__(self, on_update: Callable[[], None]) -> None:
        self.format_dict = {"elapsed": 1.0}
        self.postfix = ""
        self.total = 2
        self.on_update = on_update

    def __call__(self, **_: Any) -> Bar:
        return self

    def update(self, _: int) -> None:
        self.on_update()

    def close(self) -> None:
        pass


def until(condition: Callable[[], object]) -> None:
    end = threading.Event()
    for _ in range(WAIT_S * 200):
        if condition():
            return
        end.wait(0.005)
    raise AssertionError("it never came true")


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found
