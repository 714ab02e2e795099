"""One LLM and many threads: each call gets its own outputs, whatever becomes of the others."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from quire.errors import EngineDeadError, RequestError
from quire.llm import LLM

from .conftest import WAIT_S, Bar, Slowly, greedy, in_thread, is_clean, make, tokens, until


def test_every_thread_gets_its_own_in_its_order(llm: LLM) -> None:
    def prompts(number: int) -> list[str]:
        return [f"thread {number} prompt {index}" for index in range(3)]

    params = [greedy(7), greedy(2), greedy(4)]
    alone = [tokens(llm.generate(prompts(i), params, use_tqdm=False)) for i in range(8)]

    def work(number: int) -> None:
        for _ in range(5):
            outputs = llm.generate(prompts(number), params, use_tqdm=False)
            assert [output.prompt for output in outputs] == prompts(number)
            assert tokens(outputs) == alone[number]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=WAIT_S))
    assert is_clean(llm)


def test_every_method_at_once(llm: LLM) -> None:
    """Enqueueing, waiting, chatting, aborting by hand, resetting the cache, refused prompts."""
    chat = [{"role": "user", "content": "hi"}]
    chat_alone = tokens(llm.chat(chat, greedy(), use_tqdm=False))
    alone = tokens(llm.generate(["a", "b", "c"], greedy(), use_tqdm=False))

    def enqueue_and_wait() -> None:
        ids = llm.enqueue(["a", "b"], greedy()) + llm.enqueue("c", greedy())
        outputs = llm.wait_for_completion(use_tqdm=False)
        assert [output.request_id for output in outputs] == ids
        assert tokens(outputs) == alone

    def converse() -> None:
        assert tokens(llm.chat(chat, greedy(), use_tqdm=False)) == chat_alone

    def be_refused() -> None:
        with pytest.raises(RequestError, match="cannot be empty"):
            llm.generate(["a", ""], greedy(), use_tqdm=False)

    def touch() -> None:
        llm.reset_prefix_cache()
        llm.llm_engine.abort_request("unknown")
        llm.llm_engine.do_log_stats()
        llm.llm_engine.get_num_unfinished_requests()

    def by_hand() -> None:
        engine = llm.llm_engine
        engine.add_request("mine", "a", greedy(3))
        engine.abort_request("mine")

    kinds = [enqueue_and_wait, converse, be_refused, touch, by_hand]
    with ThreadPoolExecutor(10) as pool:
        running = [pool.submit(kind) for _ in range(8) for kind in kinds]
        for one in running:
            one.result(WAIT_S)
    assert is_clean(llm)


def test_calls_at_the_same_time_share_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly = Slowly(llm, monkeypatch)
    first = in_thread(lambda: llm.generate("a", greedy(20), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    second = in_thread(lambda: llm.generate("b", greedy(20), use_tqdm=False))
    until(lambda: llm.llm_engine._lock._door.locked())
    slowly.let_go()
    assert len(first.result(WAIT_S)) == len(second.result(WAIT_S)) == 1
    assert slowly.num_steps <= 22


def test_what_was_enqueued_runs_in_anothers_steps(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.enqueue("a", greedy())
    assert len(in_thread(lambda: llm.generate("b", greedy(9), use_tqdm=False)).result(WAIT_S)) == 1
    monkeypatch.setattr(llm.llm_engine.engine_core, "step", None)  # there is no more to do
    assert [one.prompt for one in llm.wait_for_completion(use_tqdm=False)] == ["a"]


def test_waiting_is_for_what_the_thread_enqueued(llm: LLM) -> None:
    llm.enqueue("a", greedy())

    def other() -> list[str | None]:
        llm.enqueue(["b", "c"], greedy())
        return [one.prompt for one in llm.wait_for_completion(use_tqdm=False)]

    assert in_thread(other).result(WAIT_S) == ["b", "c"]
    assert [one.prompt for one in llm.wait_for_completion(use_tqdm=False)] == ["a"]
    llm.enqueue("d", greedy())
    consumer = in_thread(lambda: llm.wait_for_completion(use_tqdm=False))
    assert [one.prompt for one in consumer.result(WAIT_S)] == ["d"]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_progress_bar_that_blocks_holds_up_no_other_call(llm: LLM) -> None:
    blocked, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert may_go_on.wait(WAIT_S)

    params = [greedy(1), greedy(60)]
    first = in_thread(lambda: llm.generate(["a", "b"], params, use_tqdm=Bar(block)))
    assert blocked.wait(WAIT_S)
    others = [in_thread(lambda: llm.generate("c", greedy(30), use_tqdm=False)) for _ in range(3)]
    for one in others:
        assert len(one.result(WAIT_S)) == 1
    may_go_on.set()
    assert len(first.result(WAIT_S)) == 2


def test_a_call_inside_a_progress_bar(llm: LLM) -> None:
    inner: list[Any] = []

    def call() -> None:
        inner.extend(llm.generate("b", greedy(3), use_tqdm=False))

    outer = in_thread(lambda: llm.generate("a", greedy(4), use_tqdm=Bar(call)))
    assert [len(found) for found in tokens(outer.result(WAIT_S))] == [4]
    assert [len(found) for found in tokens(inner)] == [3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about fork and threads
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_forked_child_may_use_the_engine(model_dir: Path, backend: str) -> None:
    with make(model_dir, backend=backend, num_threads=2) as llm:
        alone = tokens(llm.generate("abc", greedy(), use_tqdm=False))
        pid = os.fork()
        if not pid:
            is_same = False
            try:
                is_same = tokens(llm.generate("abc", greedy(), use_tqdm=False)) == alone
            finally:
                os._exit(0 if is_same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about fork and threads
def test_a_child_forked_between_two_steps_of_another_thread(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's calls are not the child's; in the middle of a step it says so at once."""
    slowly = Slowly(llm, monkeypatch)
    turn = llm._calls.loop._engine._lock
    other = in_thread(lambda: llm.generate("b", greedy(30), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)

    def end_step_once_the_other_waits() -> None:
        until(turn._door.locked)
        slowly.may_step.release()

    codes = []
    for is_in_step in (True, False):
        if not is_in_step:
            ends = in_thread(end_step_once_the_other_waits)
            turn.__enter__()
            ends.result(WAIT_S)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                slowly.let_go()
                code = 10 + len(llm.generate("a", greedy(3), use_tqdm=False))
            except EngineDeadError:
                code = 20
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    turn.__exit__(None, None, None)
    slowly.let_go()
    assert codes == [20, 11]
    assert [len(found) for found in tokens(other.result(WAIT_S))] == [30]


def test_engines_made_by_several_threads_at_once(model_dir: Path) -> None:
    def work(_: int) -> list[list[int]]:
        with make(model_dir) as own:
            return tokens(own.generate("abc", greedy(), use_tqdm=False))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4), timeout=WAIT_S))
    assert all(one == found[0] for one in found)
