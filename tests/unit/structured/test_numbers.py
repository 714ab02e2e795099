"""Numbers of JSON schemas are exact: every number that a grammar lets a model write is valid, as
`jsonschema` says with exact decimals, and valid numbers can be written."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest
from llguidance import LLMatcher
from number_schemas import KEYWORDS, is_valid, number_schema, within
from texts import checked_grammar, follows, vocabulary

from quire.errors import RequestError
from quire.structured.limits import parser_limits
from quire.structured.schemas.digits import fraction_of, literal

DIGITS = b"-.0123456789eE+"
ANY_BYTE = bytes(range(128))


def _written(grammar: str, random_: random.Random, alphabet: bytes = DIGITS) -> str:
    """A text that the grammar allows, by random choices of bytes."""
    matcher = LLMatcher(vocabulary().tokenizer, grammar, log_level=0, limits=parser_limits())
    text = bytearray()
    while not matcher.is_stopped():
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in alphabet if bits >> byte & 1]
        may_end = matcher.is_accepting()
        if may_end and (not allowed or len(text) > 60 or random_.random() < 0.25):
            break
        others = [byte for byte in allowed if byte not in b"0123456789"]
        text.append(random_.choice(others if others and len(text) > 60 else allowed))
        assert matcher.consume_token(text[-1])
    return text.decode()


def _check(schema: dict[str, Any], random_: random.Random) -> bool:
    """Whether the schema is not refused, after checks of the texts of its grammar."""
    near = _near_bounds(schema)
    try:
        grammar = checked_grammar(json=schema)
    except RequestError as error:
        # No number is valid, or a `multipleOf` cannot be exact.
        is_right = "multipleOf" in str(error) or not any(is_valid(schema, one) for one in near)
        if not is_right or error.parameter != "structured_outputs.json":
            raise AssertionError(f"{schema}: {error}") from error
        return False
    for _ in range(6):
        text = _written(grammar, random_)
        assert is_valid(schema, text), f"{schema}: {text} was written"
    numbers = [value for value in schema.values() if isinstance(value, (int, float))]
    places = {len(literal(fraction_of(value)).partition(".")[2]) for value in numbers}
    for text in near:
        # llguidance wants as many decimal places as a bound or a step has.
        whole, _, digits = text.partition(".")
        texts = [f"{whole}.{digits:0<{width}}" for width in places if width]
        if text == "0":
            texts.append("-0")  # a given value of -0.0
        does = any(follows(grammar, one) for one in (text, *texts))
        # It may have no multiples with a zero at the end, below 0 and at an upper bound.
        is_lost = not does and "multipleOf" in schema and len(digits) < max(places)
        assert is_lost or does == is_valid(schema, text), f"{schema}: {text}"
    return True


def _near_bounds(schema: dict[str, Any]) -> list[str]:
    """Numbers at the bounds and next to them, in the notation that grammars have."""
    values = [schema[key] for key in KEYWORDS if key in schema]
    values += [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    steps = [Fraction(0), Fraction(1), Fraction(1, 1000), Fraction(1, 10**30)]
    found = {
        fraction_of(value) + sign * step for value in values for sign in (1, -1) for step in steps
    }
    if schema["type"] == "integer":
        found = {value for value in found if value.denominator == 1}
    return [literal(value) for value in sorted(found)]


def _check_within(schema: dict[str, Any], random_: random.Random) -> bool:
    try:
        checked_grammar(json=schema)
    except RequestError:
        return False
    wrapped = within(random_, schema)
    grammar = checked_grammar(json=wrapped, disable_any_whitespace=random_.random() < 0.5)
    for _ in range(6):
        text = _written(grammar, random_, ANY_BYTE)
        assert is_valid(wrapped, text), f"{wrapped}: {text} was written"
    return True


@pytest.mark.parametrize("check", [_check, _check_within])
def test_random_schemas_of_numbers(check: Any) -> None:
    random_ = random.Random(20)
    num_taken = sum(check(number_schema(random_), random_) for _ in range(100))
    assert num_taken > 50


@pytest.mark.long
@pytest.mark.parametrize("check", [_check, _check_within])
def test_thousands_of_random_schemas_of_numbers(check: Any) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    num_taken = sum(check(number_schema(random_), random_) for _ in range(2000))
    assert num_taken > 1000


LARGE_ID = 2**60 + 1
ID = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}


@pytest.mark.parametrize(
    ("schema", "documents"),
    [
        (ID, [0, 2**63, 2**64 - 1, 2**64, -1]),
        ({"const": {"id": LARGE_ID, "x": [1, None]}},
         [{"id": LARGE_ID, "x": [1, None]}, {"id": LARGE_ID - 1, "x": [1, None]}]),
        ({"enum": [LARGE_ID, "a", None, [LARGE_ID]]},
         [LARGE_ID, LARGE_ID + 1, "a", None, [LARGE_ID], [LARGE_ID + 1], []]),
        ({"type": ["integer", "string"], "enum": [LARGE_ID, "a", None, 0.5]},
         [LARGE_ID, "a", None, 0.5]),
        ({"minimum": 2**63, "maxLength": 1}, [2**63, 2**63 - 1, "a", "ab", None, [1], {"a": 1}]),
        ({"type": "object", "properties": {"id": ID, "n": {"type": "string"}}, "required": ["id"]},
         [{"id": 5}, {"id": 2**64 - 1, "n": "x"}, {"id": 2**64}, {"n": "x"}, {},
          {"id": 1, "z": [1]}, {"id": 1, "i": 1, "": 2, "idd": {}}, {"id": 1, "n": 2}]),
        ({"type": "object", "additionalProperties": ID, "required": ["a"]},
         [{"a": 1}, {"a": 2**64}, {"b": 1}, {"a": 1, "b": 2**64 - 1}, {"a": 1, "b": 2**64}]),
        ({"$defs": {"n": {"type": "object", "properties": {"id": ID, "next": {"anyOf": [
            {"$ref": "#/$defs/n"}, {"type": "null"}]}}}}, "$ref": "#/$defs/n"},
         [{}, {"id": 1, "next": {"id": 2**64 - 1, "next": None}}, {"next": {"id": 2**64}}]),
        ({"type": "object", "properties": {"a": ID, "b": {"$ref": "#/properties/a"},
                                           "c": {"$ref": "#"}}},
         [{"a": 1, "b": 2, "c": {"b": 3}}, {"b": 2**64}, {"c": {"b": 2**64}}]),
        ({"type": "array", "prefixItems": [ID, {"type": "string"}], "items": ID, "minItems": 2},
         [[1], [1, "a"], [1, "a", 2**64 - 1, 3], [1, "a", 2**64], [1, 2]]),
        ({"type": "array", "prefixItems": [ID, ID], "maxItems": 1}, [[], [1], [1, 2]]),
        ({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
         [0, -1.5, 340282346638528860000000000000000000000,
          340282346638528860000000000000000000001]),
        ({"type": "integer", "minimum": 2, "maximum": 1.5, "title": "none"}, [1, 2]),
    ],
)  # fmt: skip
def test_what_leads_to_an_exact_number(schema: dict[str, Any], documents: list[Any]) -> None:
    texts = [json.dumps(document) for document in documents]
    if "title" in schema:
        with pytest.raises(RequestError, match=r"minimum \(2\) is greater than maximum \(1.5\)"):
            checked_grammar(json=schema)
        return
    grammar = checked_grammar(json=schema, disable_additional_properties=False)
    valid = [is_valid(schema, text) for text in texts]
    assert [follows(grammar, text) for text in texts] == valid
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<<", "content": content, "end": ">>"}
    whole = {"type": "structural_tag", "format": tag}
    text = json.dumps(whole)
    grammar = checked_grammar(structural_tag=text, disable_additional_properties=False)
    assert [follows(grammar, f"<<{text}>>") for text in texts] == valid


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, "bounds that allOf"),
        ({"allOf": [ID, {"multipleOf": 2}]}, r"allOf \(at #\)"),
        ({"properties": {"a": {**ID, "anyOf": [{}, {}]}}}, r"next to anyOf \(at #/properties/a\)"),
        ({"patternProperties": {"^a": ID}}, "in patternProperties"),
        ({"properties": {"a": ID}, "minProperties": 1, "type": "object"}, "next to minProperties"),
        ({"oneOf": [ID, {"type": "number"}]}, "oneOf, unless each branch has another type"),
        ({"items": [ID], "type": "array"}, "items that is a list"),
        ({"multipleOf": 0.07}, "multipleOf 0.07 cannot be held exactly"),
        ({"multipleOf": 0}, "multipleOf must be above 0, got 0"),
        ({"minimum": 10**500}, "numbers of minimum must have at most 400 digits"),
        ({"enum": [[10**500]]}, "numbers of enum must have at most 400 digits"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}, "b": ID}}, r"the target of \$ref #/\$defs/b"),
    ],
)
def test_numbers_that_cannot_be_exact_are_refused(schema: dict[str, Any], message: str) -> None:
    for fields in (
        {"json": schema},
        {"grammar": f"start: %json {json.dumps(schema)}"},
    ):
        with pytest.raises(RequestError) as raised:
            checked_grammar(**fields)
        assert raised.value.parameter == f"structured_outputs.{next(iter(fields))}"
    with pytest.raises(RequestError, match=message):
        checked_grammar(json=schema)
