"""Random JSON schemas of numbers, and `jsonschema` with exact decimals to judge texts by."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal, localcontext
from typing import Any

import jsonschema

KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LARGE = [
    2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64, 10**18, 10**20 + 1,
    1234567890123456789, 3.4028234663852886e38, 1.7976931348623157e308,
]  # fmt: skip
TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: isinstance(value, Decimal) and value % 1 == 0
)
VALIDATOR = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=TYPES)
STEPS = [1, 2, 7, 10, 100, 0.1, 0.01, 0.25, 0.5, 1.5, 2.5, 0.07, 3.3, 0.001]


def _number(random_: random.Random) -> float:
    sign = random_.choice((1, -1))
    kind = random_.randrange(7)
    if kind == 0:
        return sign * random_.randrange(4)
    if kind == 1:
        return sign * (random_.randrange(4) + random_.choice((1e-9, -1e-9, 0.5, 0.25, 1e-15)))
    if kind == 2:
        return sign * round(random_.random() * 10 ** random_.randrange(6), random_.randrange(6))
    if kind == 3:
        return sign * random_.random() * 10 ** random_.randrange(-8, 17)
    if kind == 4:
        return sign * (random_.choice(LARGE) + random_.choice((0, 0, 1, -1)))
    if kind == 5:
        return sign * random_.randrange(10 ** random_.randrange(1, 21))
    return sign * random_.choice((5e-324, 1e-7, 1e-20, 0.1 + 0.2, 123456.789012345678, 1e16, 1e22))


def _near(random_: random.Random, number: float) -> float:
    step = random_.choice((0, 1, 0.5, 1e-3, 2, 50, 1e6, 0.9999))
    return number + (step if isinstance(number, float) or step != 0.5 else 1)


def number_schema(random_: random.Random) -> dict[str, Any]:
    """Mostly with bounds, which some number may be within or none."""
    schema: dict[str, Any] = {"type": random_.choice(("number", "integer"))}
    low = _number(random_)
    if random_.random() < 0.15:
        values = [_number(random_) for _ in range(random_.randrange(1, 4))]
        schema |= {"const": values[0]} if len(values) == 1 else {"enum": values}
    if random_.random() < 0.8:
        schema[random_.choice(KEYWORDS[::2])] = low
    if random_.random() < 0.8:
        schema[random_.choice(KEYWORDS[1::2])] = _near(random_, low)
    if random_.random() < 0.1:
        schema[random_.choice(KEYWORDS)] = _number(random_)
    if random_.random() < 0.2:
        schema["multipleOf"] = random_.choice(STEPS)
    return schema


def _as_decimals(value: Any) -> Any:
    """The schema with exact numbers: `jsonschema` compares these without rounding."""
    if isinstance(value, dict):
        return {key: _as_decimals(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*map(_as_decimals, value)]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Decimal(repr(value)) if is_number else value


def is_valid(schema: dict[str, Any], text: str) -> bool:
    """Whether the text is JSON of the schema."""
    # No Decimal has a larger exponent. Only numbers without bounds have one at all.
    text = re.sub(r"(?<=[eE])([+-]?[0-9]{1,4})[0-9]*", r"\1", text)
    with localcontext(prec=100_000):
        number = json.loads(text, parse_int=Decimal, parse_float=Decimal)
        return bool(VALIDATOR(_as_decimals(schema)).is_valid(number))


def within(random_: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that has this one in it, and of which all texts are short."""
    wrappers: list[dict[str, Any]] = [
        {"type": "object", "properties": {"a": schema, "b": {"type": "null"}}},
        {"type": "object", "properties": {"b": {"type": "null"}, "a": schema}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}}},
        {"type": "array", "items": schema, "maxItems": 2},
        {"type": "array", "items": schema, "minItems": 1, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "null"}, schema], "items": False},
        {"type": "array", "prefixItems": [schema], "items": {"type": "null"}, "maxItems": 2,
         "minItems": 1},
        {"anyOf": [schema, {"type": "null"}]},
        {"oneOf": [{"type": "boolean"}, schema]},
        {"$ref": "#/$defs/n"},
        {**schema, "type": [schema["type"], "null"]},
    ]  # fmt: skip
    wrapped = random_.choice(wrappers)
    if wrapped.get("type") == "object":
        wrapped["additionalProperties"] = False
    if "$ref" in json.dumps(wrapped):
        wrapped["$defs"] = {"n": schema}
    return wrapped
