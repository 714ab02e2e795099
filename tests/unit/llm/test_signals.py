"""What a signal handler raises, at any moment of any call, reaches the caller unchanged, and the
engine goes on."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams
from quire.frontend.offline.llm_engine import LLMEngine
from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
PROMPTS = ["a b", "c"]
CHAT = [{"role": "user", "content": "hi"}]
SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGUSR1)


class Interruption(Exception):  # noqa: N818 - it is no failure
    """Of a handler. An Exception, as that of a timeout, which is easier to swallow than others."""


class Interrupter:
    """Sends a signal at a moment of a call at which Python would handle one."""

    def __init__(self) -> None:
        self.raised: list[Interruption] = []
        self.may_raise: Callable[[FrameType | None], bool] = lambda _: True
        self.num_seen = 0
        self.where: object = None
        self._moment = -1
        self._number = signal.SIGALRM

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.may_raise(frame):
            return
        self.raised.append(Interruption(number))
        raise self.raised[-1]

    def run(self, call: Callable[[], Any], moment: int, number: signal.Signals) -> None:
        self.num_seen, self._moment, self._number = 0, moment, number
        self.raised.clear()
        sys.setprofile(self._look)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        """Python handles signals when a function begins and when one of C has returned."""
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.num_seen += 1
            if self.num_seen == self._moment:
                self.where = frame.f_code.co_name, frame.f_lineno
                signal.raise_signal(self._number)


@pytest.fixture
def interrupter() -> Iterator[Interrupter]:
    made = Interrupter()
    before = {number: signal.signal(number, made.handle) for number in SIGNALS}
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with LLM(
        str(path),
        backend="reference",
        max_model_len=128,
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
        disable_log_stats=False,
    ) as made:
        yield made


def tokens(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


_ids = count()


def step_by_hand(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request(f"own-{next(_ids)}", "a b", GREEDY)
    while engine.has_unfinished_requests():
        engine.step()


def sleep_and_wake(llm: LLM) -> None:
    llm.sleep(level=1)
    llm.wake_up()


CALLS: list[Callable[[LLM], Any]] = [
    lambda llm: llm.generate(PROMPTS, GREEDY, use_tqdm=False),
    lambda llm: llm.generate("a", GREEDY),
    lambda llm: llm.chat(CHAT, GREEDY, use_tqdm=False),
    lambda llm: llm.preprocess_chat(CHAT),
    lambda llm: llm.enqueue(PROMPTS, GREEDY, use_tqdm=False),
    lambda llm: llm.wait_for_completion(use_tqdm=False),
    lambda llm: llm.beam_search(["a"], BeamSearchParams(beam_width=2, max_tokens=2)),
    lambda llm: llm.collective_rpc(lambda _: sorted(range(50), key=lambda one: -one)),
    lambda llm: llm.reset_prefix_cache(),
    lambda llm: llm.get_metrics(),
    lambda llm: llm.llm_engine.do_log_stats(),
    lambda llm: llm.llm_engine.abort_request("none"),
    step_by_hand,
    sleep_and_wake,
]


def check(llm: LLM, expected: list[list[int]]) -> None:
    """The engine is as it was before the call, but for requests that the call had queued."""
    engine = llm.llm_engine
    if engine.is_sleeping():  # the call's result was lost
        llm.wake_up()
    assert [signal.getsignal(number).__name__ for number in SIGNALS] == ["handle"] * 3  # type: ignore[union-attr]
    queued = {ticket.request_id for tickets in llm._enqueued.values() for ticket in tickets}
    left = {record.input.request_id for record in engine.output_processor.records()}
    assert all(one in queued or one.startswith("own-") for one in left)
    engine.abort_all()
    engine.step()
    llm._enqueued.clear()
    assert not engine.has_unfinished_requests()
    assert not engine.engine_core.has_unfinished_requests()
    engine.engine_core.scheduler.check_integrity()
    assert tokens(llm) == expected


def interrupt(llm: LLM, interrupter: Interrupter, seed: int, num: int) -> None:
    """Interrupts random calls at random moments."""
    rng, expected, num_moments = random.Random(seed), tokens(llm), dict[int, int]()
    for _ in range(num):
        index = rng.randrange(len(CALLS))
        if index not in num_moments:
            interrupter.run(lambda: CALLS[index](llm), -1, signal.SIGALRM)  # noqa: B023
            num_moments[index] = interrupter.num_seen
            check(llm, expected)
        moment, number = rng.randint(1, num_moments[index]), rng.choice(SIGNALS)
        try:
            interrupter.run(lambda: CALLS[index](llm), moment, number)  # noqa: B023
        except Interruption as error:
            assert error is interrupter.raised[0]  # noqa: PT017
            assert error.args == (number,)  # noqa: PT017
        else:
            # It took fewer instructions this time.
            assert interrupter.num_seen < moment, (interrupter.where, interrupter.raised)
        check(llm, expected)


def test_an_exception_at_any_moment(llm: LLM, interrupter: Interrupter) -> None:
    interrupt(llm, interrupter, seed=1, num=20)


@pytest.mark.long
def test_an_exception_at_2000_moments(llm: LLM, interrupter: Interrupter) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    interrupt(llm, interrupter, seed, num=2000)


def test_a_timer_that_never_stops_and_another_thread(llm: LLM, interrupter: Interrupter) -> None:
    """Many interruptions of one call; the other thread's tokens are right, and nothing hangs."""
    expected, others, is_over = tokens(llm), list[list[list[int]]](), threading.Event()
    interrupter.may_raise = is_in_call

    def work() -> None:
        while not is_over.is_set():
            others.append(tokens(llm))

    other = threading.Thread(target=work)
    other.start()
    num_raised = 0
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    while num_raised < 30:
        try:
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        except Interruption:
            num_raised += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    is_over.set()
    other.join(30)
    assert not other.is_alive()
    assert others
    assert all(one == expected for one in others)
    check(llm, expected)


def is_in_call(frame: FrameType | None) -> bool:
    """Whether a call of `LLM` was interrupted, and not the test."""
    while frame is not None:
        if frame.f_code.co_name == "deferring":
            return True
        frame = frame.f_back
    return False


def step_into(found: list[RequestOutput], engine: LLMEngine) -> None:
    found += engine.step()


def test_an_output_whose_step_is_interrupted_comes_with_the_next(
    llm: LLM, interrupter: Interrupter
) -> None:
    engine, expected = llm.llm_engine, tokens(llm)[0][:1]
    one_token = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    num_moments = 0
    for back in range(60):  # at the last moments it has taken what it returns
        engine.add_request("own", "a b", one_token)
        found: list[RequestOutput] = []
        try:
            interrupter.run(partial(step_into, found, engine), num_moments - back, SIGNALS[0])
        except Interruption:
            found = engine.step()
        num_moments = num_moments or interrupter.num_seen
        assert [list(one.outputs[0].token_ids) for one in found] == [expected], interrupter.where
        assert not engine.has_unfinished_requests()


@pytest.mark.usefixtures("interrupter")
def test_a_function_of_the_users_is_ended_at_once(llm: LLM) -> None:
    """A function that never ends: its handler is not kept waiting."""

    def never_ends(_: Any) -> None:
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("the handler was deferred")

    for call in (llm.collective_rpc, llm.apply_model):
        with pytest.raises(Interruption):
            call(never_ends)
    check(llm, tokens(llm))
