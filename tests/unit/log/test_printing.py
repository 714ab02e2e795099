"""Texts of others on a terminal: without characters that control it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quire.cli import main
from quire.cli.http_client import Server
from quire.log.writer import EscapingFormatter, one_line, printable, say

EVIL = "a\x1b]0;title\x07\x9b2Jb\x7f\x85\r\n\tc\u2028d"


def test_control_characters_are_removed_or_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(EVIL) == "a]0;title2Jb\n\tcd"
    assert one_line(EVIL) == r"a\x1b]0;title\x07\x9b2Jb\x7f\x85\r\n" + "\tc" + r"\u2028d"
    assert one_line("a\u202eb\u2066c") == r"a\u202eb\u2066c"
    assert printable("a\u202eb\u2066c") == "a\u202eb\u2066c"  # texts of some languages have them
    say(EVIL, end="|")
    assert capsys.readouterr().out == "a]0;title2Jb\n\tcd|"


def test_a_log_line_has_none_also_in_tracebacks() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("q", logging.INFO, "f", 1, "%s", (EVIL,), info)
    text = EscapingFormatter().format(record)
    assert not set(text) & set("\x1b\x07\x9b\x7f\x85\r\u2028")
    assert r"a\x1b]0;title" in text.splitlines()[0]


def test_names_of_a_server_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cards: list[dict[str, Any]] = [{"id": EVIL}, {"id": "other"}]
    monkeypatch.setattr(Server, "models", lambda _: cards)
    assert main(["ps"]) == 0
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\x9b\x7f\x85\r\u2028")
    assert len(out.splitlines()) == 3


def test_words_of_a_command_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They may be names of files that a shell put there."""
    for words in (["show", "demo", EVIL], ["show", f"--{EVIL}"], ["run", "demo", "--seed", EVIL]):
        with pytest.raises(SystemExit):
            main(words)
        err = capsys.readouterr().err
        assert "title" in err
        assert not set(err) & set("\x1b\x07\x9b\x7f\x85\r\u2028")
