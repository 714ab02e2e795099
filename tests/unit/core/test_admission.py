"""Requests pass the stages that they need, in one order."""

from __future__ import annotations

import pytest

from quire.core.admission import Admission, Passed, Stage
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


class _Counted(Stage):
    """Lets the most urgent request go on in each turn; the name decides."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda one: ord(one.request_id[0]))
        self.number = number
        self.unfinished: set[str] = set()

    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        return self.number in request.prompt_token_ids

    def advance(self, compute_s: float = 0.0, wait_s: float = 0.0) -> Passed:
        assert (compute_s, wait_s) == (1.0, 2.0)
        first = self._in_order()[0]
        self.abort(first.request_id)
        return Passed([first])

    def release_ended(self, unfinished: object) -> None:
        self.unfinished = {name for name in "abcd" if name in unfinished}  # type: ignore[operator]


def names(passed: Passed) -> list[str]:
    return [one.request_id for one in passed.ready]


def test_each_request_passes_the_stages_that_it_needs() -> None:
    admission = Admission([_Counted(0), _Counted(1)])
    assert not admission.add(request("d"))
    assert admission.add(request("b", 0, 1))
    assert admission.add(request("c", 1))
    assert admission.add(request("a", 0))
    assert admission.num_waiting == 3
    assert names(admission.advance(1.0, 2.0)) == ["a", "c"]
    assert names(admission.advance(1.0, 2.0)) == ["b"]  # the second stage has its turn next
    assert not admission.is_active


def test_a_waiting_request_has_a_name_of_its_own_and_can_be_aborted() -> None:
    stages = [_Counted(0), _Counted(1)]
    admission = Admission(stages)
    admission.add(request("a", 1))
    with pytest.raises(RequestError, match="'a' is being served already"):
        admission.add(request("a", 0))
    admission.release_ended({"b"})
    assert [one.unfinished for one in stages] == [{"a", "b"}, {"a", "b"}]
    admission.abort("a")
    assert not admission.num_waiting
    assert admission.add(request("a", 0))
