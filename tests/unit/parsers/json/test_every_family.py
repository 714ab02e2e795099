"""What holds for every format of JSON: it reads what its grammar allows, and stands any text."""

from __future__ import annotations

import json
import random

import pytest
from tests.fakes.replies import CountingReader, cut, divisions, message_of, parsed
from tests.unit.parsers.json.families import CALLS, TOOLS, WRITTEN, Call
from tests.unit.structured.texts import checked_grammar, follows

from quire.parsers.events import Message
from quire.parsers.format import ReplyFormat
from quire.parsers.registry import TOOL_FORMATS

FORMATS = {
    name: ReplyFormat(None, tools())
    for tools, name in {TOOL_FORMATS[name]: name for name in WRITTEN}.items()
}
"""Each format once."""
every_format = pytest.mark.parametrize("name", FORMATS)


def calls_of(message: Message) -> list[Call]:
    assert all(call.is_complete for call in message.tool_calls)
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


@every_format
@pytest.mark.parametrize("calls", CALLS, ids=["one", "empty", "several"])
def test_calls_are_read(name: str, calls: list[Call]) -> None:
    message = message_of(FORMATS[name], WRITTEN[name](calls), TOOLS)
    assert calls_of(message) == calls
    assert not message.content


@every_format
def test_content_is_kept(name: str) -> None:
    calls = CALLS[-1]
    text = f"Well, so:\n\n{WRITTEN[name](calls)}\n"
    message = Message.of(parsed(FORMATS[name], list(text), TOOLS))
    assert calls_of(message) == calls
    assert message.content == "Well, so:"


@every_format
def test_the_grammar_allows_what_the_model_writes(name: str) -> None:
    tools = TOOL_FORMATS[name]()
    grammars = [
        checked_grammar(
            structural_tag=json.dumps(
                {
                    "type": "structural_tag",
                    "format": tools.grammar(TOOLS, is_parallel=is_parallel),
                }
            )
        )
        for is_parallel in (False, True)
    ]
    for calls in CALLS:
        text = WRITTEN[name](calls)
        allowed = [follows(grammar, text) for grammar in grammars]
        assert allowed == [len(calls) == 1, True], text
    assert not follows(grammars[1], WRITTEN[name]([("get_weather", {"city": 3})]))
    assert not follows(grammars[1], WRITTEN[name]([("other", {})]))
    assert not follows(grammars[1], "")


@every_format
def test_a_reply_that_is_cut(name: str) -> None:
    calls = CALLS[-1]
    text = WRITTEN[name](calls)
    for length in range(len(text)):
        cut = text[:length]
        message = Message.of(parsed(FORMATS[name], [cut], TOOLS, is_cut=True))
        if length % 9 == 0:
            assert Message.of(parsed(FORMATS[name], list(cut), TOOLS, is_cut=True)) == message
        assert len(message.content) < 2 or message.content.isalpha()
        names = [call.name for call in message.tool_calls]
        assert names == [tool for tool, _ in calls][: len(names)]
        for call, (_, arguments) in zip(message.tool_calls, calls, strict=False):
            assert not call.is_complete or json.loads(call.arguments) == arguments


@every_format
def test_any_text(name: str) -> None:
    dice = random.Random(name)
    for text in hostile(name, dice, count=25):
        whole = Message.of(parsed(FORMATS[name], [text], TOOLS))
        divided = (list(text), *list(divisions(text))[-3:])
        for pieces in divided:
            assert Message.of(parsed(FORMATS[name], pieces, TOOLS)) == whole, text


def hostile(name: str, dice: random.Random, count: int) -> list[str]:
    """Texts that are nearly replies: parts of one, shuffled, cut, repeated, or with noise."""
    marks = (*FORMATS[name].tools.markers, *"{}[]\",:<\\`;\n ", "null", "7", "é🎌", "[ARGS]",
             '{"name": "', "arguments", "get_weather", '{"city": "x"}', "```json", ":0",
             "</tool_call>", "｜tool", "<|")  # fmt: skip
    texts = []
    for _ in range(count):
        text = WRITTEN[name](dice.choice(CALLS))
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(text) + 1)
            kind = dice.randrange(5)
            if kind == 0:
                text = text[:at] + dice.choice(marks) + text[at:]
            elif kind == 1:
                text = text[:at] + text[at + dice.randrange(20) :]
            elif kind == 2:
                text = text[:at]
            elif kind == 3:
                text = text[at:] + text[:at]
            else:
                text = text[:at] + WRITTEN[name](dice.choice(CALLS)) + text[at:]
            if not text:
                text = dice.choice(marks)
        texts.append(text)
    texts += ["".join(dice.choices(marks, k=dice.randrange(1, 40))) for _ in range(count)]
    return texts


@pytest.mark.sweep(6)
@every_format
def test_work_grows_with_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.parsers.events.TextReader", CountingReader)

    def work(size: int) -> float:
        line = 'a "quoted" {line} of [text] <b>\n'
        calls = [("fs/write-file", {"path": "x", "lines": [line] * (size // len(line))})]
        text = line * 20 + WRITTEN[name](calls)
        CountingReader.work = 0
        message = Message.of(parsed(FORMATS[name], cut(text, 7), TOOLS))
        assert calls_of(message) == calls
        return CountingReader.work / len(text)

    assert work(60_000) < 2 * work(6_000)
