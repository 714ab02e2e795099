"""A proposer of an installed package: whatever it does, requests go on."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from quire.config.speculation import SpeculationConfig
from quire.scheduler.drafting.proposer import Proposal, Proposer
from quire.scheduler.drafting.proposers import proposer_of

REQUEST: Any = SimpleNamespace(token_ids=[1, 2])
VOCAB = 100


class Package(Proposer):
    """Does what a test says."""

    def __init__(self, propose: Callable[[], Any], forget: Callable[[], None]) -> None:
        self._propose, self._forget = propose, forget
        self.num_calls = 0

    def propose(self, _request: Any, _most: int) -> Any:
        self.num_calls += 1
        return self._propose()

    def forget(self, _request: Any) -> None:
        self.num_calls += 1
        self._forget()


def installed(
    monkeypatch: pytest.MonkeyPatch,
    propose: Callable[[], Any],
    forget: Callable[[], None] = lambda: None,
) -> tuple[Proposer, Package]:
    """The proposer as the engine has it, and the package's."""
    package = Package(propose, forget)
    entry = SimpleNamespace(load=lambda: lambda _: package)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry])
    return proposer_of(SpeculationConfig("mine"), VOCAB), package


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


ERRORS = [ValueError("no"), MemoryError(), SystemExit(3), GeneratorExit()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_one_that_raises_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    for is_in_propose in (True, False):
        calls = [raising(error), lambda: None]
        one, package = installed(monkeypatch, *(calls if is_in_propose else calls[::-1]))
        for _ in range(3):
            assert one.propose(REQUEST, 4) is None
            one.forget(REQUEST)
        assert package.num_calls == (1 if is_in_propose else 2)
        assert "the proposer Package failed and is not called again" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    "given",
    [
        Proposal([-1], 0), Proposal([3, VOCAB], 0), Proposal([10**30], 0), Proposal([1], 5),
        Proposal([1], -1), Proposal(["a"], 0), Proposal([1.0], 0), [1, 2], 7,
    ],
    ids=repr,
)  # fmt: skip
def test_one_that_proposes_no_tokens_is_not_called_again(
    monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    one, package = installed(monkeypatch, lambda: given)
    assert one.propose(REQUEST, 4) is None
    assert one.propose(REQUEST, 4) is None
    assert package.num_calls == 1


def test_no_more_guesses_than_were_asked_for_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = installed(monkeypatch, lambda: Proposal([7] * 1000, 3))
    assert one.propose(REQUEST, 4) == Proposal([7] * 4, 3)
