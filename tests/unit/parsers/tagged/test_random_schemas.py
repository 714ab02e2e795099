"""Arguments that a grammar allows are read back, and are valid by any schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher
from tests.unit.parsers.tagged.test_grammars import NAMES
from tests.unit.structured.texts import checked_grammar, vocabulary

from quire.errors import GrammarError
from quire.parsers.parser import parse_whole
from quire.parsers.registry import TOOL_FORMATS, reply_format
from quire.structured.limits import parser_limits

JSON = ("inkling", "openai", "plamo3")
WORDS = [
    "null", "true", "12", "120", "none", "[1]", '{"x":1}', "a b", "2024-02-29", "1.2.3.4", "abc",
    '"a"',
]  # fmt: skip
_LETTERS = b"ab5 </>\n,.:-{[\"'"
_MOST = 5000
DEFINITIONS: dict[str, Any] = {
    "Color": {"enum": ["red", "5", "a</b>", "null"], "type": "string"},
    "Code": {"type": "string", "pattern": "^[a-c]{2,4}$", "minLength": 3},
    "Count": {"type": "integer", "minimum": 3, "maximum": 120},
    "Point": {
        "type": "object",
        "properties": {"x": {"type": "number"}, "name": {"$ref": "#/$defs/Color"}},
        "required": ["x"],
    },
    "Tree": {
        "type": "object",
        "properties": {
            "v": {"type": "integer"},
            "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "maxItems": 2},
        },
        "required": ["v"],
    },
}
_VALUES: list[Any] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number", "minimum": 0.5},
    {"type": "boolean"},
    {"type": ["string", "null"]},
    {"type": ["string", "integer"]},
    {"type": ["string", "number", "boolean", "null"]},
    {"type": ["integer", "null"]},
    {"enum": ["a", 1, 2.5, None, True, "null", "1"]},
    {"enum": [1, 2]},
    {"const": "only"},
    {"const": 7},
    {"anyOf": [{"enum": ["none", "all"]}, {"type": "null"}]},
    {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None},
    {"allOf": [{"$ref": "#/$defs/Code"}], "description": "x"},
    {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4, "pattern": "a"}]},
    {"oneOf": [{"const": "x", "title": "X"}, {"const": "y"}]},
    {"oneOf": [{"const": 1}, {"const": "z"}]},
    {"$ref": "#/$defs/Code"},
    {"$ref": "#/$defs/Count", "description": "x"},
    {"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "string", "pattern": "^[0-9]"}]},
    {"anyOf": [{"type": "integer", "multipleOf": 5}, {"type": "string"}]},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "pattern": "^a|5"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2,
     "maxItems": 2},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": ["string", "null"], "maxLength": 5}},
    {"type": "object", "required": ["k"]},
    {"$ref": "#/$defs/Point"},
    {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
    {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Point"}]},
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    {"allOf": [{"$ref": "#/$defs/Point"}, {"properties": {"y": {"type": "integer"}}}]},
    {"$ref": "#/$defs/Tree"},
    {"$ref": "#/properties/a"},
    {},
]  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", [name for name in NAMES if name not in JSON])
def test_random_arguments_are_valid(name: str, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    schema = random_arguments(dice)
    format = TOOL_FORMATS[name]()
    try:
        part = format.grammar({"f": schema}, is_parallel=False)
    except GrammarError:
        with pytest.raises(GrammarError, match=r"no text matches|[Uu]nsatisfiable"):
            checked_grammar(json=schema)
        return
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    ends = sorted({*ends_of(part), '"', "}", "]", '"}', '"]', "1", "a", "5", "/", ","} - {""})
    words = [*WORDS] if name == "minimax_m3" else [*WORDS, *format.literal_texts()]
    texts = [random_text(grammar, dice, words, ends) for _ in range(3)]
    assert any(texts)
    for text in filter(None, texts):
        message = parse_whole(reply_format(None, format), text, {"f": schema})
        (call,) = message.tool_calls
        assert (call.is_complete, message.content) == (True, ""), text
        arguments = json.loads(call.arguments)
        assert validator.is_valid(arguments), (text, schema, arguments)


def random_arguments(dice: random.Random) -> dict[str, Any]:
    """The schema of a tool's arguments."""

    def some(names: str) -> dict[str, Any]:
        properties = {name: dice.choice(_VALUES) for name in names if dice.random() < 0.6}
        properties = {
            name: {"type": "integer"} if name == "a" and "$ref" in of else of
            for name, of in properties.items()
        }
        return {
            "type": "object",
            "properties": {"a": {"type": "integer"}, **properties},
            "required": [name for name in properties if dice.random() < 0.5],
        }

    kind = dice.randrange(9)
    schema = some("abc")
    if kind == 1:
        schema["additionalProperties"] = dice.choice(_VALUES)
    if kind == 2:
        schema |= {"allOf": [some("de")]}
    if kind == 3:
        schema |= {"anyOf": [some("de"), {"required": ["a"]}]}
    if kind == 4:
        schema |= {"oneOf": [
            {"properties": {"k": {"const": name}, **some("d")["properties"]}, "required": ["k"]}
            for name in "pq"
        ]}  # fmt: skip
    if kind == 5:
        schema["required"].append("z")
    if kind == 6:
        schema = {"type": "object", "additionalProperties": dice.choice(_VALUES[:-2])}
    if kind == 7:
        schema = {"type": "object", "$ref": "#/$defs/Point", "properties": schema["properties"]}
    return {**schema, "$defs": DEFINITIONS}


def ends_of(part: Any) -> Iterator[str]:
    """Texts that end the values of a part."""
    if isinstance(part, list):
        for one in part:
            yield from ends_of(one)
    if not isinstance(part, dict):
        return
    if part["type"] == "tag":
        yield part["end"]
        content = part["content"]
        for one in content["elements"] if content["type"] == "or" else [content]:
            if one["type"] == "members":
                yield one["end"] + part["end"]
    if part["type"] == "members":
        yield part["separator"]
    for key in ("content", "elements", "tags", "more"):
        yield from ends_of(part.get(key))


def random_text(
    grammar: str, dice: random.Random, words: Sequence[str], ends: Sequence[str]
) -> str | None:
    """A text that the grammar allows. `words`: what it is likely to have. `ends`: what its values
    end with. None: there would be no end of it."""
    tokenizer = vocabulary().tokenizer
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    written = bytearray()
    while not matcher.is_stopped() and not (matcher.is_accepting() and dice.random() < 0.7):
        assert not matcher.is_error(), matcher.get_error()
        if len(written) > _MOST:
            return None
        bits = int.from_bytes(matcher.compute_bitmask(), "little") & ((1 << 256) - 1)
        assert bits, (written, matcher.get_error())
        if bits & (bits - 1) == 0:
            token = bits.bit_length() - 1
            assert matcher.consume_token(token)
            written.append(token)
            continue
        likely = [word.encode() for word in dice.sample([*words, *ends], 6)]
        if len(written) > 200 or dice.random() < 0.4:
            likely = [word.encode() for word in dice.sample(ends, len(ends))]
        if len(written) > 400:
            is_inner = dice.random() < 0.5
            likely.sort(key=lambda word: (word.isalnum(), (len(word) > 2) == is_inner))
        allowed = [byte for byte in range(128) if bits >> byte & 1]
        usual = [byte for byte in allowed if byte in _LETTERS] or allowed
        for word in [*likely, bytes([dice.choice(usual or [*range(256)])])]:
            copy = matcher.deep_copy()
            if word and copy.try_consume_tokens([*word]) == len(word):
                assert matcher.try_consume_tokens([*word]) == len(word)
                written += word
                break
    return written.decode()
