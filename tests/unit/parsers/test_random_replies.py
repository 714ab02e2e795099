"""Every reply that follows a constraint parses into calls of offered tools that validate."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import jsonschema
import pytest
from tests.fakes.random_replies import RandomModel, tokenizer_of

from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.events import Message
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import parse_whole
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format
from quire.structured.params import StructuredOutputsConfig
from quire.structured.tags.parts import first_texts
from quire.structured.trial import GrammarTrial

SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
    "put-all": {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
            "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
            "deep": {"type": "object", "properties": {"x": {"type": "number"}},
                     "required": ["x"], "additionalProperties": False},
        },
        "required": ["items", "note"],
        "additionalProperties": False,
        "$defs": {"item": {"type": "object", "properties": {"ok": {"type": "boolean"}},
                           "required": ["ok"], "additionalProperties": False}},
    },
}  # fmt: skip
TOOLS = [OfferedTool(name, schema) for name, schema in SCHEMAS.items()]
REASONING = ReasoningTags("<think>", "</think>")
KINDS = ("special", "ordinary", "none")
"""What the marks of a format are in the vocabulary."""
MARK = re.compile(r"</?[^<>\s=]+>|\[[A-Z_]+\]")
"""What may be a token of its own."""
UNHELD = ("inkling", "kimi_k3", "muse_glimmer")
"""No text announces their calls, so that `auto` leaves them as they are."""
FORMATS = sorted({made: name for name, made in TOOL_FORMATS.items()}.values())
"""A name of each class."""
SEEDS = range(3)
_MOST_SEEDS = 12
"""So many where none of the first replies ended."""


def format_of(name: str, kind: str) -> ReplyFormat:
    """Without reasoning where its end would have to be written letter by letter."""
    own = REASONING_FORMATS.get({"openai": "openai_gptoss"}.get(name, name), REASONING)
    return reply_format(None if kind == "none" else own, TOOL_FORMATS[name]())


@lru_cache(maxsize=4)
def model_of(name: str, kind: str) -> RandomModel:
    texts = format_of(name, kind).literal_texts(has_tools=True)
    marks = [mark for text in texts for mark in MARK.findall(text)]
    return RandomModel(
        tokenizer_of(marks if kind == "special" else (), marks if kind == "ordinary" else ())
    )


def replies(name: str, kind: str, choice: Any, **fields: Any) -> list[Message]:
    """Messages of the replies that ended, of at least `SEEDS`."""
    tools = TOOL_FORMATS[name]()
    format = format_of(name, kind)
    model = model_of(name, kind)
    tokenizer = model.tokenizer
    trial = GrammarTrial(
        StructuredOutputsConfig(), tokenizer.max_token_id + 1, lambda: tokenizer.added_texts
    )
    is_reasoning = fields.pop("is_reasoning", False)
    rules = CallRules(TOOLS, choice, **fields)
    spec = reply_constraint(format, rules, trial.checked, is_reasoning=is_reasoning)
    if spec is None:
        assert name in UNHELD
        return [Message()]
    spec = trial.checked(spec)
    start = ""
    if choice == "auto":
        start = next(iter(first_texts(tools.grammar(SCHEMAS, is_parallel=True))), "")
    texts: list[str | None] = []
    while len(texts) < len(SEEDS) or (not any(texts) and len(texts) < _MOST_SEEDS):
        seed = len(texts)
        texts.append(model.reply(spec, seed, begin=start if seed % 2 else ""))
    messages = []
    for text in texts:
        if text is not None:
            message = parse_whole(format, text, SCHEMAS, is_reasoning=is_reasoning)
            check(message, text)
            messages.append(message)
    return messages


def check(message: Message, text: str) -> None:
    for call in message.tool_calls:
        assert call.is_complete, text
        assert call.name in SCHEMAS, text
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.sweep(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_required(name: str, kind: str) -> None:
    messages = replies(name, kind, "required")
    assert messages or name in UNHELD
    for message in messages:
        assert message.tool_calls
        assert name in UNHELD or not message.content.strip()


@pytest.mark.sweep(16)
@pytest.mark.parametrize("name", FORMATS)
def test_named(name: str) -> None:
    messages = replies(
        name, "special", "required", only=("put-all",), is_parallel=False, is_reasoning=True
    )
    for message in messages:
        assert [call.name for call in message.tool_calls] == ["put-all"]


@pytest.mark.sweep(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_auto(name: str, kind: str) -> None:
    assert replies(name, kind, "auto")
    for message in replies(name, kind, "auto", is_parallel=False):
        assert len(message.tool_calls) <= 1
