"""`quire run`: one answer from a model in this process, and what the plain words mean."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from quire.cli import main
from quire.cli.commands.run import split_words
from quire.cli.conversation.local import LocalConversation
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError


def test_words(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert split_words([], None) == (None, None)
    assert split_words([here], None) == (here, None)
    assert split_words(["org/name"], None) == ("org/name", None)
    assert split_words(["What is 17 + 25?"], None) == (None, "What is 17 + 25?")
    assert split_words(["Hello"], None) == (None, "Hello")
    assert split_words(["either/or what?"], None) == (None, "either/or what?")
    assert split_words(["m", "hi"], None) == ("m", "hi")
    assert split_words(["hi"], "m") == ("m", "hi")
    with pytest.raises(ConfigError, match="quotes"):
        split_words(["What", "is", "this"], None)
    with pytest.raises(ConfigError, match="quotes"):
        split_words(["What", "is"], "m")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", *words, "--max-tokens", "8", "--temperature", "0"]) == 0
    return capsys.readouterr().out


def test_one_answer_is_the_same_every_time(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = answer(capsys, str(tiny_model), "hello")
    assert first.endswith("\n")
    assert first == answer(capsys, "--model", str(tiny_model), "hello")


def test_a_pipe_is_a_prompt(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(capsys, str(tiny_model), "hello")
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert answer(capsys, str(tiny_model)) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("  \n"))
    assert main(["run", str(tiny_model)]) == 1
    assert "standard input is empty" in capsys.readouterr().err


def test_stopping_early_frees_the_request(tiny_model: Path) -> None:
    conversation = LocalConversation(EngineArgs(model=str(tiny_model), max_num_seqs=2))
    conversation.settings.update(temperature=0.0, max_tokens=50)
    try:
        stream = conversation.stream([{"role": "user", "content": "hello"}])
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert not conversation.engine.has_unfinished_requests()
        whole = [*conversation.stream([{"role": "user", "content": "hello"}])]
        assert conversation.counts.completion > 1
        assert conversation.counts.cached > 0
        assert whole
    finally:
        conversation.close()


def test_a_wrong_setting_is_one_line(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tiny_model), "hello", "--temperature", "9"]) == 1
    assert "temperature must be in [0, 2]" in capsys.readouterr().err
