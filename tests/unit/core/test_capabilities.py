"""Requests pass the stages that they need, in one order; a hook is called where it exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.capabilities import Capabilities
from quire.core.capability import Capability, Passed, Stage
from quire.errors import RequestError
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest


def request(name: str, *needs: int) -> EngineCoreRequest:
    """`needs`: the numbers of the stages that it must pass."""
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[*needs],
        sampling_params=SamplingParams(),
        arrival_time=0.0,
    )


class _Queue:
    """Takes the place of a scheduler."""

    def __init__(self) -> None:
        self.states = SimpleNamespace(by_id={})
        self.queued: list[str] = []

    def add_request(self, request: EngineCoreRequest) -> None:
        if 9 in request.prompt_token_ids:
            raise RequestError("it never fits")
        self.queued.append(request.request_id)


def capabilities_of(*every: Capability) -> tuple[Capabilities, _Queue]:
    scheduler: Any = _Queue()
    return Capabilities(every, scheduler), scheduler


class _Counted(Stage):
    """Lets the most urgent request go on in each turn; the name decides."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda one: ord(one.request_id[0]))
        self.number = number
        self.unfinished: set[str] = set()

    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        return self.number in request.prompt_token_ids

    def advance(self, *, is_idle: bool) -> Passed:
        assert is_idle
        first = self._in_order()[0]
        self.abort([first.request_id])
        return Passed([first])

    def release_ended(self, unfinished: object) -> None:
        self.unfinished = {name for name in "abcd" if name in unfinished}  # type: ignore[operator]


class _Begun(Capability):
    """Notes the requests that were queued before it was its turn."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.seen: list[list[str]] = []

    def begin(self, request: EngineCoreRequest) -> None:
        self.names.append(request.request_id)

    def advance(self, *, is_idle: bool) -> None:
        self.seen.append([*self.names] * is_idle)


def test_each_request_passes_the_stages_that_it_needs() -> None:
    begun = _Begun()
    every, scheduler = capabilities_of(_Counted(0), _Counted(1), begun)
    for one in (request("d"), request("b", 0, 1), request("c", 1), request("a", 0)):
        every.add(one)
    assert scheduler.queued == ["d"]
    assert every.num_waiting == 3
    assert not every.advance(is_idle=True)
    assert scheduler.queued == begun.names == ["d", "a", "c"]
    assert begun.seen == [["d", "a", "c"]]  # in the same turn
    assert not every.advance(is_idle=True)  # the second stage has its turn next
    assert scheduler.queued == ["d", "a", "c", "b"]
    assert not every.num_waiting


def test_a_request_that_can_never_run_is_refused_where_it_is_queued() -> None:
    every, scheduler = capabilities_of(_Counted(0))
    with pytest.raises(RequestError, match="it never fits"):
        every.add(request("a", 9))
    every.add(request("b", 0, 9))
    [failed] = every.advance(is_idle=True)
    assert (failed.request_id, failed.error, failed.is_unmet) == ("b", "it never fits", True)
    assert not scheduler.queued


def test_a_waiting_request_has_a_name_of_its_own_and_can_be_aborted() -> None:
    stages = [_Counted(0), _Counted(1)]
    every, scheduler = capabilities_of(*stages)
    every.add(request("a", 1))
    with pytest.raises(RequestError, match="'a' is being served already"):
        every.add(request("a", 0))
    scheduler.states.by_id = {"b": None}
    every.release_ended()
    assert [one.unfinished for one in stages] == [{"a", "b"}, {"a", "b"}]
    every.run("abort", ["a"])
    assert not every.num_waiting
    every.add(request("a", 0))
    assert every.num_waiting == 1


def test_hooks_that_a_capability_does_not_have_are_not_called() -> None:
    every, _ = capabilities_of(_Counted(0), _Begun(), Capability())
    assert [len(every.hooks(name)) for name in ("begin", "follow", "release_ended")] == [1, 0, 1]
