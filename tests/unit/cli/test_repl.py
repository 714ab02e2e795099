"""The conversation loop: commands, Ctrl+C, and what is remembered."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from quire.cli import saved_chats
from quire.cli.http_client import SamplingDefaults
from quire.cli.repl import (
    COMMANDS,
    Conversation,
    Repl,
    TokenCounts,
    calls_message,
    completions,
    image_part,
)
from quire.cli.terminal import LineEditor, StopOnInterrupt, printable, read_line
from quire.errors import RequestError
from quire.parsers.events import Content, Event, Message, ToolCall


class Parrot(Conversation):
    """Says the last message word by word; Ctrl+C comes after `interrupt_after` words."""

    interrupt_after: int | None = None
    is_closed = False

    def stream(self, messages: list[dict[str, str]]) -> Iterator[Event]:
        try:
            for number, word in enumerate(messages[-1]["content"].split(), start=1):
                if number == self.interrupt_after:
                    os.kill(os.getpid(), signal.SIGINT)
                yield Content(word + " ")
        finally:
            self.is_closed = True
            self.counts = TokenCounts(prompt=5, cached=2, completion=3)


@pytest.fixture
def repl() -> Repl:
    return Repl(Parrot("Be kind."), "test")


def feed(monkeypatch: pytest.MonkeyPatch, lines: list[str | type[BaseException]]) -> None:
    pending = iter(lines)

    def read(prompt: str) -> str:
        del prompt
        line = next(pending, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def test_a_conversation(
    repl: Repl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    feed(
        monkeypatch, ["hello there", "", KeyboardInterrupt, "/stats", "again\\", "and on", "/quit"]
    )
    assert repl.loop("welcome") == 0
    out = capsys.readouterr().out
    assert out.startswith("welcome\nhello there \n")
    assert "5 in (2 cached), 3 out" in out
    assert [m["content"] for m in repl.conversation.history] == [
        "hello there", "hello there ", "again\nand on", "again and on ",
    ]  # fmt: skip
    assert repl.conversation.messages_with("x")[0] == {"role": "system", "content": "Be kind."}


def test_interrupting_keeps_what_was_said(repl: Repl) -> None:
    parrot = repl.conversation
    assert isinstance(parrot, Parrot)
    parrot.interrupt_after = 2
    before = signal.getsignal(signal.SIGINT)
    assert repl.say("one two three four") == "one two "
    assert parrot.is_closed
    assert parrot.history[-1]["content"] == "one two "
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_is_not_held_back() -> None:
    with StopOnInterrupt() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_commands(repl: Repl) -> None:
    repl.conversation.remember("a", Message("b"))
    assert "/system" in repl.command("/help")
    repl.command("/reset")
    assert repl.conversation.history == []
    repl.command("/system Answer in Latin.")
    assert repl.conversation.system_prompt == "Answer in Latin."
    repl.command("/system")
    assert repl.conversation.system_prompt is None
    repl.command("/set temperature 0.5")
    repl.command("/set max_tokens 7")
    assert repl.conversation.settings == {"temperature": 0.5, "max_tokens": 7}
    repl.command("/set temperature default")
    assert repl.conversation.settings == {"max_tokens": 7}
    assert "max_tokens = 7" in repl.command("/set")
    assert "did you mean temperature?" in repl.command("/set temprature 1")
    assert "must be a number" in repl.command("/set top_k many")
    assert "temperature must be in [0, 2]" in repl.command("/set temperature 9")
    assert repl.conversation.settings == {"max_tokens": 7}
    assert "did you mean /reset?" in repl.command("/rset")


def test_settings_are_shown_with_their_origin(repl: Repl) -> None:
    assert "temperature = the server's default" in repl.command("/set")
    repl.conversation.defaults = SamplingDefaults({"top_k": 20}, {"temperature": 0.7})
    repl.command("/set seed 3")
    lines = [line.strip() for line in repl.command("/set").splitlines()]
    for line in ("temperature = 0.7 (default)", "top_k = 20 (the model's default)", "seed = 3",
                 "min_p = 0.0, all tokens (default)"):  # fmt: skip
        assert line in lines
    assert repl.conversation.sampling() == {"temperature": 0.7, "seed": 3}
    assert "temperature = 0.7 (default)" in repl.command("/set temperature default")


def test_tab_completes_commands() -> None:
    assert completions("/re") == ["/reset", "/regenerate", "/reasoning"]
    assert completions("/set te") == ["/set temperature"]
    assert completions("/reasoning o") == ["/reasoning on", "/reasoning off"]
    assert completions("re") == completions("") == completions("/help x") == []


def test_a_refused_message_does_not_end_the_conversation(
    repl: Repl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refusal = RequestError("the prompt is too long")
    answers = Mock(side_effect=[refusal, iter([Content("fine")])])
    monkeypatch.setattr(repl.conversation, "stream", answers)
    feed(monkeypatch, ["long", "short", "/quit"])
    assert repl.loop("welcome") == 0
    assert capsys.readouterr().out == "welcome\nthe prompt is too long\nfine\n"
    assert [one["content"] for one in repl.conversation.history] == ["short", "fine"]


def test_reasoning_is_switched(repl: Repl) -> None:
    assert repl.conversation.template_variables() == {}
    repl.command("/reasoning on")
    assert repl.conversation.template_variables()["enable_thinking"] is True
    repl.command("/reasoning off")
    assert repl.conversation.template_variables()["enable_thinking"] is False
    assert "on or off" in repl.command("/reasoning maybe")
    repl.command("/reasoning")
    assert repl.conversation.template_variables() == {}


def test_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["one\\", "two", '"""', "a", "", " b", '"""', '"""c', 'd"""', '"""e"""', '"""f']
    feed(monkeypatch, lines)
    assert read_line("> ") == "one\ntwo"
    assert [read_line("> ") for _ in range(4)] == ["a\n\n b", "c\nd", "e", "f"]
    assert read_line("> ") is None
    assert printable("a\x1b[2Jb\tc\nd\x00\x9b") == "a[2Jb\tc\nd"
    assert printable("می\u200cخواهم 👩\u200d🚀") == "می\u200cخواهم 👩\u200d🚀"


def test_history_needs_no_writable_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    with LineEditor("test", completions):
        pass
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with LineEditor("test", completions):
        pass
    assert (tmp_path / "state/quire/test_history").stat().st_mode & 0o777 == 0o600


def test_an_image_without_a_name_is_an_error() -> None:
    with pytest.raises(RequestError, match="the name of an image file must follow"):
        image_part("")


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "quire" / "chats"


def test_a_conversation_is_saved_and_loaded(repl: Repl, data: Path) -> None:
    repl.say("hello there")
    repl.conversation.history[0]["content"] = [{"type": "image_url"}, {"text": "hello"}]
    before = list(repl.conversation.history)
    assert str(data / "first.json") in repl.command("/save first")
    assert data.stat().st_mode & 0o777 == 0o700
    repl.command("/system Be rude.")
    assert "1 message" in repl.command("/load first")
    assert (repl.conversation.history, repl.conversation.system_prompt) == (before, "Be kind.")
    assert repl.command("/load") == "first"
    assert completions("/load f") == ["/load first"]


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "x" * 65, "a b", "é", "a\n"])
def test_names_of_conversations_are_no_paths(data: Path, name: str) -> None:
    with pytest.raises(RequestError, match="64 letters"):
        saved_chats.save(name, None, [])
    assert not data.exists()


def test_a_file_that_save_did_not_write_is_refused(repl: Repl, data: Path) -> None:
    data.mkdir(parents=True)
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    for messages in (
        1, [user], [answer, user], [user, {**answer, "content": None}], ["a", "b"],
        [{**user, "content": []}, answer], [user, {**answer, "reasoning": 1}],
    ):  # fmt: skip
        text = json.dumps({"system_prompt": None, "messages": messages})
        (data / "odd.json").write_text(text)
        with pytest.raises(RequestError, match="that /save wrote"):
            repl.command("/load odd")
    for raw in (b"\xff", b"[" * 100000, b"", b"null", b'{"messages": 1}'):
        (data / "odd.json").write_bytes(raw)
        with pytest.raises(RequestError, match="that /save wrote"):
            repl.command("/load odd")
    with pytest.raises(RequestError, match="saved are odd"):
        repl.command("/load other")


def test_rounds_of_tool_calls_are_saved_and_answered_again(repl: Repl, data: Path) -> None:
    call = ToolCall("add", "c1", '{"a": 1}', is_complete=True)
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    rounds = [calls_message(Message("I add.", tool_calls=[call])), result]
    repl.conversation.remember("one and one", Message("2"), rounds)
    history = list(repl.conversation.history)
    repl.command("/save sums")
    repl.command("/reset")
    assert "1 message(s)" in repl.command("/load sums")
    assert repl.conversation.history == history
    repl.regenerate()
    assert [one["content"] for one in repl.conversation.history] == ["one and one", "one and one "]
    path = data / "sums.json"
    for wrong in (history[:2] + history[3:], [history[0], *history[2:]], history[:3]):
        path.write_text(json.dumps({"system_prompt": None, "messages": wrong}))
        with pytest.raises(RequestError, match="that /save wrote"):
            repl.command("/load sums")


def test_an_answer_is_made_again(repl: Repl) -> None:
    with pytest.raises(RequestError, match="no message"):
        repl.regenerate()
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    repl.say("one")
    repl.conversation.history[-2]["content"] = [image, {"type": "text", "text": "two words"}]
    repl.conversation.images = [{"type": "waiting"}]

    def stream(messages: list[dict[str, object]]) -> Iterator[Event]:
        assert messages[-1]["content"] == [image, {"type": "text", "text": "two words"}]
        yield Content("better")

    repl.conversation.stream = stream  # type: ignore[method-assign]
    repl.regenerate()
    assert [one["role"] for one in repl.conversation.history] == ["user", "assistant"]
    assert repl.conversation.history[-1]["content"] == "better"
    assert repl.conversation.images == [{"type": "waiting"}]
    kept = list(repl.conversation.history)
    repl.conversation.stream = Mock(side_effect=RequestError("no"))  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="no"):
        repl.regenerate()
    assert repl.conversation.history == kept


def test_help_has_every_command(repl: Repl) -> None:
    text = repl.command("/?")
    assert text == repl.command("/help")
    assert [name for name in COMMANDS if name not in text] == []
