"""EngineCore: requests wait for their grammars, choose by their masks, and end alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_vocabulary import allowed, ids, source

from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.executor import Executor
from quire.params import SamplingParams
from quire.protocol import CacheScope, EngineCoreOutput, EngineCoreRequest, SchedulePlan, StepResult
from quire.structured import compile as module
from quire.structured.follower import Follower
from quire.structured.params import StructuredOutputsParams
from quire.structured.tags.texts import AddedTokens
from quire.structured.vocabulary import VocabularySource

IDS = ids()
ANY = IDS["z"]
"""What requests without a grammar get."""
CHOICE = StructuredOutputsParams(choice=["yes", "no"])
WRONG = StructuredOutputsParams(regex="((")


class LowestExecutor(Executor):
    """Chooses the lowest token that a mask allows; wrong tokens for requests in `disobeyed`."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.submitted: list[SchedulePlan] = []
        self.disobeyed: set[str] = set()
        self.masks: list[set[str | int]] = []

    def submit(self, plan: SchedulePlan) -> None:
        self.submitted.append(plan)

    def collect(self) -> StepResult:
        plan = self.submitted.pop(0)
        masks = dict(zip(plan.structured_output_request_ids, plan.grammar_bitmask, strict=True))
        self.masks += [allowed(mask) for mask in masks.values()]
        sampled = []
        for name, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            if name in plan.started:
                self.left[name] = len(plan.started[name].token_ids)
            self.left[name] -= count
            sampled.append([] if self.left[name] else [self._choose(name, masks.get(name))])
            self.left[name] += not self.left[name]
        return StepResult(sampled_token_ids=sampled)

    def _choose(self, name: str, mask: bytes | None) -> int:
        if mask is None or name in self.disobeyed:
            return ANY
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        return int(np.flatnonzero(bits)[0])

    def call(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        raise AssertionError(method, args, kwargs)

    def failure(self) -> str | None:
        return None

    def shutdown(self) -> None:
        pass


def request(
    name: str, spec: StructuredOutputsParams | None = None, max_tokens: int = 4
) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=1, structured_outputs=spec)
    eos = [IDS["<eos>"], IDS["<end>"]]
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1, 2, 3],
        sampling_params=params,
        arrival_time=0.0,
        stop_token_ids=eos,
        eos_token_ids=eos[:1],
    )


@pytest.fixture
def executor() -> LowestExecutor:
    return LowestExecutor()


@pytest.fixture
def core(
    make_config: Callable[..., EngineConfig],
    executor: LowestExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> EngineCore:
    def read(_model: object) -> VocabularySource:
        return source()

    monkeypatch.setattr("quire.core.engine_core.vocabulary_source", read)
    return EngineCore(make_config(max_num_seqs=8), executor)


def run(core: EngineCore) -> tuple[dict[str, list[int]], dict[str, str | None]]:
    """All tokens, and how each request ended: its error, or the finish reason."""
    got: dict[str, list[int]] = {}
    ends: dict[str, str | None] = {}
    while core.has_unfinished_requests():
        step = core.step()
        core.scheduler.check_integrity()
        for output in step.outputs:
            assert output.request_id not in ends
            got.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                ends[output.request_id] = output.error or output.finish_reason
    assert step.stats is not None
    assert (step.stats.num_running, step.stats.num_waiting) == (0, 0)
    assert not core.structured_outputs.num_requests
    return got, ends


def test_the_mask_follows_the_tokens(core: EngineCore, executor: LowestExecutor) -> None:
    core.add_request(request("a", CHOICE))
    core.add_request(request("b"))
    got, ends = run(core)
    assert got == {"a": [IDS["n"], IDS["o"], IDS["<eos>"]], "b": [ANY] * 4}
    assert ends == {"a": "stop", "b": "length"}
    assert executor.masks == [{"y", "ye", "yes", "n", "no"}, {"o"}, {"<eos>", "<end>"}]


def test_requests_that_cannot_go_on_end_alone(core: EngineCore, executor: LowestExecutor) -> None:
    executor.disobeyed.add("refused")
    for name, spec in {"wrong": WRONG, "refused": CHOICE, "a": CHOICE, "b": None}.items():
        core.add_request(request(name, spec))
    got, ends = run(core)
    assert got["a"] == [IDS["n"], IDS["o"], IDS["<eos>"]]
    assert got["b"] == [ANY] * 4
    assert "unclosed group" in (ends["wrong"] or "")
    assert "refuses a token" in (ends["refused"] or "")
    assert (ends["a"], ends["b"]) == ("stop", "length")


def test_the_last_request_cannot_go_on(core: EngineCore, executor: LowestExecutor) -> None:
    executor.disobeyed.add("refused")
    core.add_request(request("refused", CHOICE))
    assert "refuses a token" in (run(core)[1]["refused"] or "")


def test_others_go_on_while_a_grammar_is_compiled(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    grammar_of = module.grammar_of

    def slow(spec: StructuredOutputsParams, added: AddedTokens) -> str:
        may_go_on.wait(60)
        return grammar_of(spec, added)

    monkeypatch.setattr(module, "grammar_of", slow)
    for name, spec in {"a": CHOICE, "aborted": CHOICE, "b": None}.items():
        core.add_request(request(name, spec))
    outputs = [output for _ in range(4) for output in core.step().outputs]
    assert [output.request_id for output in outputs] == ["b"] * 4
    stats = core.step().stats
    assert stats is not None
    assert (stats.num_running, stats.num_waiting) == (0, 2)
    core.abort_requests(["aborted"])
    may_go_on.set()
    got, ends = run(core)
    assert got == {"a": [IDS["n"], IDS["o"], IDS["<eos>"]]}
    assert ends == {"a": "stop"}


def test_a_newcomer_does_not_wait_for_the_mask_of_the_only_request(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, begun = threading.Event(), threading.Event()
    follow = Follower.follow

    def slow(follower: Follower, token_ids: list[int]) -> None:
        begun.set()
        may_go_on.wait(60)
        follow(follower, token_ids)

    monkeypatch.setattr(Follower, "follow", slow)
    core.add_request(request("a", CHOICE))
    first: list[EngineCoreOutput] = []
    while not first:
        first = core.step().outputs
    assert begun.wait(60)
    core.add_request(request("b"))
    outputs = [output for _ in range(4) for output in core.step().outputs]
    assert [output.request_id for output in outputs] == ["b"] * 4
    may_go_on.set()
    assert run(core)[0] == {"a": [IDS["o"], IDS["<eos>"]]}


def test_an_abort_between_two_steps(core: EngineCore) -> None:
    core.add_request(request("a", CHOICE))
    while not core.scheduler.states.running:
        core.step()
    core.abort_requests(["a", "unknown"])
    assert not core.structured_outputs.num_requests
    assert not core.has_unfinished_requests()


def test_a_step_that_fails_ends_its_grammars_too(
    core: EngineCore, executor: LowestExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.errors import BackendError

    def fails() -> StepResult:
        executor.submitted.pop(0)
        raise BackendError("broken")

    monkeypatch.setattr(executor, "collect", fails)
    core.add_request(request("a", CHOICE))
    assert run(core)[1] == {"a": "the step failed: broken"}


def test_in_a_pause_a_request_waits_whatever_its_grammar(core: EngineCore) -> None:
    core.commands["pause"]("wait")
    core.add_request(request("a", CHOICE))
    assert not core.has_unfinished_requests()
    core.commands["resume"]()
    assert run(core)[1] == {"a": "stop"}


def test_tenants_share_no_grammars(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a reply would show whether another tenant has used the same schema."""
    compiled, grammar_of = [], module.grammar_of

    def counted(spec: StructuredOutputsParams, added: AddedTokens) -> str:
        compiled.append(spec)
        return grammar_of(spec, added)

    monkeypatch.setattr(module, "grammar_of", counted)
    for name, salt in (("a", "one/x"), ("b", "one/y"), ("c", "two"), ("d", None), ("e", "two/")):
        asked = request(name, StructuredOutputsParams(choice=["yes"]))
        asked.scope = CacheScope(salt)
        core.add_request(asked)
    run(core)
    assert len(compiled) == 3
