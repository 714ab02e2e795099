"""Any text can be read in any format: without an error, the same however it is divided, in work
that grows with its size."""

from __future__ import annotations

import json
import random

import pytest
from tests.fakes.replies import CountingReader, cut, parsed
from tests.unit.parsers.tagged.test_grammars import NAMES, TOOLS
from tests.unit.parsers.tagged.written import Writer

from quire.parsers.events import Message
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format

NOISE = [
    *"{}[]\"'\\<>=:,()\n 7｜",
    "</",
    "/>",
    "null",
    "é🎌",
    "name=",
    "search",
    "say(",
    "to=",
    "<|",
    "|>",
]
_LONGEST_MARK = 40
"""The begin of one may be at the end of a value that was cut."""
AS_WRITTEN = ("inkling", "openai", "plamo3")
"""Pass on arguments in JSON as they are."""
FORMATS = {
    name: reply_format(REASONING_FORMATS["openai_gptoss"] if name == "openai" else None, tools())
    for name, tools in TOOL_FORMATS.items()
    if name in NAMES
}


def hostile(name: str, dice: random.Random, count: int) -> list[str]:
    """Texts that are nearly replies: with noise, parts missing, repeated, moved, within others."""
    format = FORMATS[name]
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=True)
    marks = [*NOISE, *filter(None, format.literal_texts(has_tools=True))]
    texts = []
    for _ in range(count):
        text = Writer(dice.randrange(10**6)).text(part)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(text) + 1)
            other = dice.choice(marks)
            text = dice.choice(
                [
                    text[:at] + other + text[at:],
                    text[:at] + text[at + dice.randrange(20) :],
                    text[:at],
                    text[at:] + text[:at],
                    text.replace(other, dice.choice(marks), 1),
                    text[:at] + text[: dice.randrange(60)] + text[at:],
                ]
            )
        texts.append(text)
    return texts + ["".join(dice.choices(marks, k=dice.randrange(40))) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_any_text(name: str) -> None:
    dice = random.Random(name)
    for text in hostile(name, dice, count=15):
        whole = Message.of(parsed(FORMATS[name], [text], TOOLS))
        for size in (1, 2, 7):
            assert Message.of(parsed(FORMATS[name], cut(text, size), TOOLS)) == whole, text
        for call in whole.tool_calls:
            if call.is_complete and name not in AS_WRITTEN:
                assert isinstance(json.loads(call.arguments), dict), text


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_that_is_cut(name: str) -> None:
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=True)
    text = Writer(3).text(part)
    calls = Message.of(parsed(FORMATS[name], [text], TOOLS)).tool_calls
    for length in range(0, len(text), 2):
        short = Message.of(parsed(FORMATS[name], [text[:length]], TOOLS)).tool_calls
        for call, whole in zip(short, calls, strict=False):
            assert call.name == whole.name
            assert not call.is_complete or call.arguments == whole.arguments
            assert whole.arguments.startswith(call.arguments[:-_LONGEST_MARK])


@pytest.mark.sweep(8)
@pytest.mark.parametrize("size", [7, 10**9])
@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_the_text(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.parsers.events.TextReader", CountingReader)
    texts = hostile(name, random.Random(name), count=5)

    def work(times: int) -> float:
        CountingReader.work = total = 0
        for text in texts:
            long = (text or "x") * times
            parsed(FORMATS[name], cut(long, size), TOOLS)
            total += len(long)
        return CountingReader.work / total

    assert work(20) < 2 * work(2)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"muse_glimmer"}))
def test_no_mark_of_a_call_that_was_cut_is_content(name: str) -> None:
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=True)
    for seed in range(3):
        text = Writer(seed).text(part)
        for length in range(2, len(text)):
            pieces = [text[:length]] if length % 5 else list(text[:length])
            message = Message.of(parsed(FORMATS[name], pieces, TOOLS, is_cut=True))
            assert len(message.content.strip()) < 2, text[:length]
