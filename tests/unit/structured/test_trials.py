"""Grammars are tried in a child process: what ends it is an error of the one grammar's."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from texts import checked_grammar, trial

import quire.structured.trial
from quire.errors import QuireError, RequestError
from quire.structured import trial_process as module
from quire.structured.params import StructuredOutputsConfig, StructuredOutputsParams
from quire.structured.trial import GrammarTrial
from quire.structured.trial_process import TrialJob, TrialVocabulary

JOB = TrialJob(TrialVocabulary(("<a>",), ("<a>",), None), "start: /a+/")


@pytest.fixture(autouse=True)
def own_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[module.ChildProcess]]:
    """None but those of the test."""
    idle: list[module.ChildProcess] = []
    monkeypatch.setattr(module._children, "_idle", idle)
    yield idle
    for child in idle:
        child.close()


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_not() -> None:
    one = trial()
    with pytest.raises(RequestError, match=r"json does not work: .*more than 0.3 s of") as raised:
        one.checked(StructuredOutputsParams(json={"const": list(range(60_000))}))
    assert raised.value.parameter == "structured_outputs.json"
    assert "make it smaller" in str(raised.value)
    one.checked(StructuredOutputsParams(json={"const": [1, 2]}))


def test_the_first_trial_is_told() -> None:
    told: list[int] = []
    one = GrammarTrial(StructuredOutputsConfig(), 1000, dict, lambda: told.append(len(told)))
    for text in ("a", "b"):
        one.checked(StructuredOutputsParams(regex=text))
    assert told == [0]


def test_what_was_asked_for_before_is_not_made_a_grammar_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, made = trial(), list[object]()
    make = quire.structured.trial.grammar_of
    monkeypatch.setattr(
        "quire.structured.trial.grammar_of", lambda *args: [made.append(args), make(*args)][1]
    )
    for text in ("a", "a", "b", "a"):
        assert one.checked(StructuredOutputsParams(regex=text)).regex == text
    for _ in range(2):
        with pytest.raises(RequestError, match="unclosed group"):
            one.checked(StructuredOutputsParams(regex="("))
    assert len(made) == 3


def test_errors_show_the_lines_of_a_grammar_to_those_alone_who_wrote_it() -> None:
    tag = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}'
    for name, value in (("regex", "("), ("structural_tag", tag)):
        with pytest.raises(RequestError) as raised:
            trial().checked(StructuredOutputsParams(**{name: value}))
        assert str(raised.value) == (
            f'structured_outputs.{name} does not work: invalid regex "(" (in regex): regex '
            "parse error:\n    (\n    ^\nerror: unclosed group"
        )
    with pytest.raises(RequestError, match=r"at 1\(8\): (.|\n)*1 \| start: /\(/"):
        trial().checked(StructuredOutputsParams(grammar="start: /(/"))


def test_one_child_tries_one_grammar_after_another(own_children: list[module.ChildProcess]) -> None:
    one = trial()
    for text in ("a", "b", "(", "c"):
        if text == "(":
            with pytest.raises(RequestError, match="unclosed group"):
                one.checked(StructuredOutputsParams(regex=text))
        else:
            checked_grammar(regex=text)
        if text == "a":
            [first] = own_children
    assert own_children == [first]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGPROF, "more than 0.3 s of processor time"),
        (signal.SIGSEGV, "nests too deeply"),
        (signal.SIGABRT, "too much memory"),
        (signal.SIGKILL, "too much memory"),
    ],
)
def test_how_a_child_ended_is_told(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, message: str
) -> None:
    _replace_child(monkeypatch, f"import os; os.kill(os.getpid(), {int(number)})")
    with pytest.raises(module.TrialStopped, match=message):
        module.try_grammar(JOB)
    with pytest.raises(RequestError, match=f"regex does not work: .*{message}"):
        checked_grammar(regex="a")


def test_a_trial_that_was_stopped_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    one, spec = trial(), StructuredOutputsParams(regex="ab")
    _replace_child(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(RequestError, match="too much memory"):
        one.checked(spec)
    monkeypatch.undo()
    assert one.checked(spec) == spec


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; sys.stdout.buffer.write(bytes([255] * 9))", "has failed: a reply of"),
        ("import sys; sys.stdout.buffer.write(bytes([0, 0, 0, 1, 193]))", "has failed"),
    ],
)
def test_a_child_that_does_not_work_is_no_fault_of_the_grammars(
    monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    _replace_child(monkeypatch, code)
    with pytest.raises(QuireError, match=message) as raised:
        module.try_grammar(JOB)
    assert not isinstance(raised.value, RequestError)
    monkeypatch.undo()
    assert module.try_grammar(JOB) == ""


def test_a_child_that_is_gone_is_replaced(own_children: list[module.ChildProcess]) -> None:
    assert module.try_grammar(JOB) == ""
    [first] = own_children
    first.close()
    assert module.try_grammar(JOB) == ""
    assert own_children != [first]


def test_a_child_runs_nothing_that_hangs_before_its_own_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a child would not see that its parent has ended, and outlive it."""
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(module, "_CLOCK_S", 10.0)
    assert module.try_grammar(JOB) == ""


def _replace_child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(module, "isolated_command", lambda *_: [sys.executable, "-c", code])
