"""Objects have no properties but those that a schema names, where it does not say otherwise."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from tests.unit.structured.texts import checked_grammar, follows

from quire.errors import GrammarError
from quire.structured.schemas.closing import closed
from quire.structured.schemas.resolving import Resolver

A, B = {"a": {"type": "integer"}}, {"b": {"type": "string"}}
BASE = {"type": "object", "properties": A, "required": ["a"]}
NODE = {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"next": {"$ref": "#/$defs/node"}}}]}
BOTH_BRANCHES = {
    **BASE,
    "anyOf": [{"properties": {"b": {}}, "required": ["b"]}, {"properties": {"c": {}}}],
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, [{}, {"a": 1}], []),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
        ({"properties": A, "required": ["b"]}, [{"a": 1, "b": None}], [{"b": 1, "c": 1}]),
        ({"properties": A, "additionalProperties": True}, [{"a": 1, "b": 2}], []),
        ({**BASE, "additionalProperties": B["b"]}, [{"a": 1, "b": "x"}], [{"a": 1, "b": 2}]),
        ({**BASE, "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
        ({"patternProperties": {"^x": A["a"]}}, [{"x1": 2}, {}], [{"y": 2}, {"x": ""}]),
        ({"properties": A, "patternProperties": {"^x": A["a"]}, "required": ["e"]},
         [{"e": 1}, {"a": 1, "e": "", "x": 1}], [{"a": 1}, {"e": 1, "x": ""}]),
        ({**BASE, "patternProperties": {"^x": A["a"]}, "allOf": [{"properties": B,
          "required": ["b"]}]}, [{"a": 1, "b": ""}, {"a": 1, "b": "", "x": 1}], [{"a": 1}]),
        ({"type": "array", "items": BASE}, [[{"a": 1}]], [[{"a": 1, "z": 1}]]),
        ({"additionalProperties": BASE}, [{"x": {"a": 1}}], [{"x": {"a": 1, "z": 1}}]),
        ({"anyOf": [BASE, {"properties": B}]}, [{"a": 1}, {"b": ""}], [{"a": 1, "b": ""}]),
        ({"allOf": [BASE, {"properties": B}]}, [{"a": 1, "b": ""}], [{"b": ""}, {"a": 1, "c": 1}]),
        ({**BASE, "allOf": [{"properties": B}]}, [{"a": 1, "b": ""}], [{"a": 1, "c": 1}]),
        ({"allOf": [BASE]}, [{"a": 1}], [{"a": 1, "c": 1}]),
        (BOTH_BRANCHES, [{"a": 1, "b": 2}, {"a": 1, "c": 2}], [{"b": 1}, {"a": 1, "d": 1}]),
        ({"allOf": [{"properties": {"o": {"properties": A}}}, {"properties": {"o": BASE}}]},
         [{"o": {"a": 1}}, {}], [{"o": {}}, {"o": {"a": 1, "b": 1}}]),
        ({"allOf": [{**BASE, "additionalProperties": True}, {"properties": B}]},
         [{"a": 1, "c": 1}], [{"c": 1}]),
        ({**BASE, "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "b": 1}]),
        ({"allOf": [BASE, {"properties": B}], "unevaluatedProperties": A["a"]},
         [{"a": 1, "b": "", "c": 1}], [{"a": 1, "b": "", "c": ""}]),
        ({"$ref": "#/$defs/base", "properties": B, "$defs": {"base": BASE}},
         [{"a": 1, "b": ""}], [{"a": 1, "c": ""}]),
        ({"$ref": "#/$defs/base", "description": "x", "$defs": {"base": BASE}},
         [{"a": 1}], [{"a": 1, "c": ""}]),
        ({"$ref": "#/$defs/node", "$defs": {"base": BASE, "node": NODE}},
         [{"a": 1}, {"a": 1, "next": {"a": 2, "next": {"a": 3}}}],
         [{"a": 1, "z": 1}, {"a": 1, "next": {"a": 2, "z": 3}}, {"a": 1, "next": {}}]),
        ({"allOf": [{"properties": B}, {"properties": {"c": {"$ref": "#/properties/d"}}}],
          "properties": {"d": BASE}},
         [{"b": "", "c": {"a": 2}, "d": {"a": 1}}], [{"c": {"a": 1, "z": 2}}]),
        ({**BASE, "properties": {**A, "r": {"$ref": "#"}}}, [{"a": 1, "r": {"a": 2}}],
         [{"a": 1, "r": {"a": 2, "z": 1}}]),
        ({"oneOf": [{"type": "object", "properties": {"k": {"const": kind}, **more},
                     "required": ["k"]} for kind, more in (("a", A), ("b", B))]},
         [{"k": "a", "a": 1}, {"k": "b"}], [{"k": "a", "b": ""}, {"k": "c"}]),
        ({"type": "object", "properties": {"v": {}}, "oneOf": [
            {"properties": {"k": {"const": kind}}, "required": ["k"]} for kind in "ab"]},
         [{"v": 1, "k": "a"}, {"k": "b"}], [{"v": 1}, {"k": "a", "z": 1}]),
    ],
    ids=str,
)  # fmt: skip
def test_objects_are_closed(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    before = json.dumps(schema)
    grammar = checked_grammar(json=schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert {str(one): follows(grammar, json.dumps(one)) for one in (*good, *bad)} == {
        **{str(one): True for one in good},
        **{str(one): False for one in bad},
    }
    assert all(map(validator.is_valid, good))
    assert json.dumps(schema) == before


def test_schemas_that_would_become_too_large_stay_open() -> None:
    two = {"anyOf": [{"properties": A}, {"properties": B}]}
    many = {"type": "object", "allOf": [two] * 8}
    assert follows(checked_grammar(json=many), '{"a":1,"c":2}')
    chain = {
        f"d{i}": {"properties": {"x": {"allOf": [{"$ref": f"#/$defs/d{(i + 1) % 300}"}, BASE]}}}
        for i in range(300)
    }
    closed({"$defs": chain, "$ref": "#/$defs/d0"})
    checked_grammar(json={"$defs": {**chain}, **BASE})


def test_the_work_of_merging_has_a_bound() -> None:
    many = {"allOf": [{"enum": [*range(1000)]}, *({"minLength": i} for i in range(100))]}
    with pytest.raises(GrammarError, match="combines too many"):
        Resolver(many).alternatives(many)
    several = {"allOf": [{"enum": [*range(1000)]}, *({"minLength": i} for i in range(20))]}
    assert len(Resolver(several).alternatives(several)[0]["enum"]) == 1000


def test_equal_values_are_common() -> None:
    two = {"allOf": [{"enum": [1, True, "1", None, [1], {"a": 1, "b": 2}]},
                     {"enum": [1.0, 0, {"b": 2, "a": 1}, None, [True], "1"]}]}  # fmt: skip
    (flat,) = Resolver(two).alternatives(two)
    assert json.dumps(flat["enum"]) == json.dumps([1, "1", None, {"a": 1, "b": 2}])


def random_schema(dice: random.Random, depth: int) -> dict[str, Any]:
    """A schema of objects, joined in all ways."""
    names = dice.sample("abcd", dice.randrange(1, 4))
    kind = dice.randrange(8 if depth else 3)
    if kind < 3:
        leaf = dice.choice([{"type": "integer"}, {"type": "string"}, {"enum": ["x", 1]}, {}])
        inner = random_schema(dice, depth - 1) if depth and dice.random() < 0.4 else leaf
        schema: dict[str, Any] = {"type": "object", "properties": dict.fromkeys(names, inner)}
        if dice.random() < 0.5:
            schema["required"] = names[:1]
        if dice.random() < 0.2:
            schema["additionalProperties"] = dice.choice([True, False, {"type": "integer"}])
        return schema
    some = [random_schema(dice, depth - 1) for _ in range(2)]
    if kind == 3:
        return {"anyOf": some}
    if kind == 4:
        return {"$ref": f"#/$defs/{dice.choice('pq')}", **(some[0] if "$ref" in some[0] else {})}
    base = random_schema(dice, 0)
    return {5: {"allOf": some}, 6: {**base, "anyOf": some}, 7: {**base, "allOf": some}}[kind]


def random_document(dice: random.Random, depth: int = 2) -> Any:
    if not depth or dice.random() < 0.3:
        return dice.choice([1, "x", "y"])
    names = sorted(dice.sample("abcde", dice.randrange(4)))
    return {name: random_document(dice, depth - 1) for name in names}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(60))
def test_what_a_closed_schema_allows_is_valid(seed: int) -> None:
    dice = random.Random(seed)
    definitions = {name: random_schema(dice, 1) for name in "pq"}
    schema = {**random_schema(dice, 2), "$defs": definitions}
    before = json.dumps(schema)
    try:
        jsonschema.Draft202012Validator(schema).is_valid({})
    except RecursionError:
        return
    narrow = jsonschema.Draft202012Validator(closed(schema))
    wide = jsonschema.Draft202012Validator(schema)
    for _ in range(200):
        document = random_document(dice)
        assert wide.is_valid(document) or not narrow.is_valid(document), (schema, document)
    assert json.dumps(schema) == before
