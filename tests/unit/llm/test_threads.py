"""One LLM and many threads: each call gets its own outputs, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.errors import EngineDeadError, EngineGenerateError, RequestError
from quire.frontend.offline.llm_engine import LLMEngine
from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams

WAIT_S = 30


def greedy(max_tokens: int = 6) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def make(model_dir: Path, **changes: Any) -> LLM:
    options = {"backend": "reference", "max_model_len": 128, "max_num_seqs": 16, **changes}
    return LLM(str(model_dir), **options)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


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
    until(lambda: len(llm._loop._callers) == 2)
    monkeypatch.setattr(llm.llm_engine.engine_core.executor._worker, "execute", fail)
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
        patch.setattr(llm.llm_engine.engine_core.executor._worker, "execute", fail)
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

        tickets = llm._add(["a", "b"], 2, [greedy(1), greedy(50)], None, None)
        return llm._loop.collect(tickets, on_output)

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
        with pytest.raises(EngineDeadError, match="was shut down; make a new one"):
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
        with pytest.raises(EngineDeadError, match="was shut down; make a new one"):
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
        until(lambda: len(llm._loop._callers) == 2)
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
    execute = engine.engine_core.executor._worker.execute

    def pressed_in_the_middle(plan: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return execute(plan)

    engine.add_request("one", "a", greedy(1))
    monkeypatch.setattr(engine.engine_core.executor._worker, "execute", pressed_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    monkeypatch.undo()
    assert engine.has_unfinished_requests()
    assert [one.request_id for one in engine.step()] == ["one"]
    assert is_clean(llm)


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
    other = in_thread(lambda: llm.generate("b", greedy(30), use_tqdm=False))
    assert slowly.steps_begun.acquire(timeout=WAIT_S)
    codes = []
    for is_in_step in (True, False):
        if not is_in_step:
            llm._loop._engine._lock.__enter__()
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
        slowly.may_step.release()
    llm._loop._engine._lock.__exit__(None, None, None)
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
