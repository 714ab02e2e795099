"""Hostile schemas, expressions and grammars: each ends in an error that names it, or works."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from texts import checked_grammar, follows, trial

from quire.errors import RequestError
from quire.structured import trial_process as module
from quire.structured.params import StructuredOutputsParams
from quire.structured.tags.grammar import tags_grammar
from quire.structured.tags.texts import AddedTokens

Schema = dict[str, Any]


def _nested(depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _inside_itself() -> Schema:
    schema: Schema = {"type": "array"}
    schema["items"] = schema
    return schema


def _doubling() -> Schema:
    schema: Any = {}
    for _ in range(40):
        schema = {"anyOf": [schema, schema]}
    return schema  # type: ignore[no-any-return]


def _patterns(count: int) -> Schema:
    return {"type": "string", "allOf": [{"pattern": f".*{i}.*"} for i in range(count)]}


def _chained_patterns(count: int) -> Schema:
    """Each refers to the next one, and lies in a property of the same name."""
    defs = {
        f"d{i}": {
            "properties": {"a": {"pattern": f"{i}"}},
            "anyOf": [{"$ref": f"#/$defs/d{i + 1}"}],
        }
        for i in range(count)
    }
    return {"$defs": {**defs, f"d{count}": {}}, "$ref": "#/$defs/d0"}


def _chain(count: int) -> Schema:
    """Definitions that refer to each other in a circle."""
    defs = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{(i + 1) % count}"}}}
        for i in range(count)
    }
    return {"$defs": defs, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_nested(65), "nested too deeply: objects and arrays may nest at most 64 levels"),
        ("[" * 100_000, "not valid JSON|nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply"),
        (_inside_itself(), "nested too deeply"),
        (_doubling(), "nested too deeply"),
        ({"enum": [f"v{i}" for i in range(100_000)]}, "has .* bytes, .* at most 524288"),
        ({"enum": list(range(20_000))}, "has 20000 enum values, .* at most 10000"),
        ({"const": "x" * 10_000_000}, "has .* bytes, .* at most 524288"),
        ({"properties": {f"p{i}": {} for i in range(1001)}}, "1001 properties of one object"),
        ({"required": [f"p{i}" for i in range(1001)]}, "1001 required properties of one object"),
        ({"prefixItems": [{}] * 4001}, "4001 prefix items"),
        ({"patternProperties": {f"^a{i}$": {} for i in range(65)}}, "65 pattern properties"),
        ({"anyOf": [{}] * 2001}, "2001 branches of anyOf, oneOf and allOf"),
        ({"type": "integer", "multipleOf": 999_983}, "999983 units of multipleOf"),
        ({"multipleOf": 1e300}, "units of multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "988027 units .* one number"),
        (_patterns(20), "20 patterns and formats for one text, .* at most 8"),
        (_chained_patterns(30), "patterns and formats for one text"),
        ({"pattern": "a" * 20_000}, "20000 bytes of one pattern"),
        ({"$ref": "http://localhost/schema.json"}, "nothing is fetched; put it under"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
        ({"$id": "http://localhost/a", "$ref": "b"}, "does not work: .*localhost/b"),
        ({"$ref": "#"}, "no text matches it"),
        ({"$ref": "#/$defs/none"}, "does not work"),
        ({"not": {"type": "string"}}, r'Unimplemented keys: \["not"\]'),
        ({"type": "string", "format": "iri"}, "Unknown format: iri"),
        ({"type": "text"}, "Invalid type: text"),
        ({"type": "string", "pattern": "(?!a)b"}, "look-around"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable schema"),
        ("false", "does not work"),
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON schema, an object"),
        ('{"const": NaN}', "is not valid JSON"),
        ({"const": float("nan")}, "must hold only what JSON has"),
        ({"const": object()}, "must hold only what JSON has"),
        ({"const": "\ud800"}, "must hold only what JSON has"),
        ({"type": "string", "x-guidance": 3}, "x-guidance"),
    ],
)
def test_a_schema_that_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        checked_grammar(json=schema)
    assert raised.value.parameter == "structured_outputs.json"
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (
            {"properties": {"not": {"properties": {"a/b": {"not": {}}}}}},
            "#/properties/not/properties/a~1b",
        ),
        ({"anyOf": [{"type": "null"}, {"items": {"uniqueItems": True}}]}, "#/anyOf/1/items"),
        ({"$defs": {"x": {"format": "iri"}}, "$ref": "#/$defs/x"}, "#/$defs/x"),
        ({"properties": {"a": {"type": "text"}}}, "#/properties/a"),
        ({"$id": "http://a/b", "items": {"$ref": "other"}}, "#/items"),
        ({"enum": [{"not": 1}], "not": {}}, "#"),
    ],
)
def test_the_part_that_does_not_work_is_named(schema: Schema, place: str) -> None:
    with pytest.raises(RequestError) as raised:
        checked_grammar(json=schema)
    assert str(raised.value).endswith(f"(at {place})")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (_nested(31), "[" * 31 + "1" + "]" * 31),
        ({"$defs": {"n": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/n"}}]}},
          "$ref": "#/$defs/n"}, "[[null]]"),
        ({"properties": {"a": {"$ref": "#"}}}, '{"a":{"a":{}}}'),
        (_chain(700), '{"a":{"a":{}}}'),
        ({"enum": [f"v{i}" for i in range(10_000)]}, '"v9999"'),
        ({"properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}, '{"p999":1}'),
        (_patterns(2), '"0 1"'),
        ({"type": "string", "pattern": "^(a+)+$"}, '"aaa"'),
        ({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}, '"aa"'),
        ({"type": "string", "maxLength": 10**9}, '"a"'),
        ({"type": "array", "minItems": 2, "maxItems": 10**6}, "[1,2]"),
        ({"type": "number", "multipleOf": 0.01}, "1.25"),
        ({"properties": {name: {"pattern": name} for name in "abcdefghijklm"}}, '{"m":"m"}'),
        ({"anyOf": [{"pattern": str(i)} for i in range(9)]}, '"8"'),
    ],
)  # fmt: skip
def test_a_schema_that_works(schema: Schema, text: str) -> None:
    assert follows(checked_grammar(json=schema), text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a" * 70_000}, "has 70000 bytes, .* at most 65536"),
        ({"regex": "(" * 5000 + "a" + ")" * 5000}, "regex does not work"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "no text matches it"),
        ({"regex": "a{99999999999}"}, "regex does not work"),
        ({"choice": [str(i) for i in range(10_001)]}, "has 10001 choices, .* at most 10000"),
        ({"choice": ["x" * 600_000]}, "bytes"),
        ({"grammar": "x" * 200_000}, "has 200000 bytes"),
        ({"grammar": "nothing"}, "neither in Lark's notation"),
        ({"grammar": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000}, "nested too deeply"),
        ({"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000}, "too deeply nested"),
        ({"grammar": "root ::= a\n" * 1001}, "has 1001 rules, .* at most 1000"),
        ({"grammar": "\n" * 100_000}, "cannot be an empty string"),
        ({"grammar": "\n" * 100_000 + "a"}, "neither in Lark's notation"),
        ({"grammar": 'root ::= root "a"'}, "no text matches it"),
        ({"grammar": "start: <none>"}, "unknown special token"),
        ({"grammar": "start: <[100000]>"}, "Token range end too large"),
        ({"grammar": 'start: %json {"multipleOf": 999983}'}, "999983 units of multipleOf"),
        ({"grammar": "start: %json {x}"}, "%json that is not valid JSON"),
        ({"structural_tag": "x" * 600_000}, "bytes"),
        ({"structural_tag": '{"format":' * 100 + "1" + "}" * 100}, "nested too deeply"),
        ({"json_object": True, "whitespace_pattern": "("}, "unclosed group"),
        ({"json_object": True, "whitespace_pattern": " " * 2000}, "has 2000 bytes"),
    ],
)
def test_a_grammar_that_is_refused(fields: dict[str, Any], message: str) -> None:
    kind = list(fields)[-1]
    with pytest.raises(RequestError, match=message) as raised:
        checked_grammar(**fields)
    assert raised.value.parameter in (
        f"structured_outputs.{kind}",
        "structured_outputs.json_object",
    )
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    "regex",
    ["(a+)+", "(a{1,1000}){1,1000}", "a{1,1000000}", "(.{0,500}x){0,500}", "(a|b)*a(a|b){20}"],
)
def test_an_expression_that_takes_long_elsewhere(regex: str) -> None:
    checked_grammar(regex=regex)


def test_what_works_and_what_does_not_is_known_the_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = trial()
    for spec, works in (("a+", True), ("(a", False)):
        tried: list[Any] = []
        try_it = module.try_grammar

        def counted(job: Any, tried: list[Any] = tried, try_it: Any = try_it) -> str:
            tried.append(job)
            return str(try_it(job))

        monkeypatch.setattr(module, "try_grammar", counted)
        for _ in range(3):
            try:
                one.checked(StructuredOutputsParams(regex=spec))
                assert works
            except RequestError:
                assert not works
        assert len(tried) == 1
        monkeypatch.undo()


def test_a_request_keeps_its_schema_when_the_caller_changes_his() -> None:
    schema: Schema = {"type": "integer"}
    spec = trial().checked(StructuredOutputsParams(json=schema))
    schema["type"] = "nothing"
    assert json.loads(str(spec.json)) == {"type": "integer"}


def test_large_schema_is_refused_before_it_takes_memory() -> None:
    text = json.dumps({"enum": ["x" * 1_000_000] * 10})
    tracemalloc.start()
    with pytest.raises(RequestError, match="bytes"):
        checked_grammar(json=text)
    assert tracemalloc.get_traced_memory()[1] < 30_000_000
    tracemalloc.stop()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("begin", ['"', "/"])
def test_a_grammar_whose_text_has_no_end_is_read_in_linear_time(begin: str) -> None:
    """It took a minute, in which no other thread ran."""
    tokens = AddedTokens({"<one>": 7}, [])
    open_text = begin + f"\\{begin}" * 300_000
    assert tokens.by_id(f"{open_text}\n<one>") == f"{open_text}\n<[7]>"
    whole = 'start: "<one>" /<one>/ <one> <two> // <one>\n'
    assert tokens.by_id(whole) == 'start: "<one>" /<one>/ <[7]> <two> // <one>\n'


@pytest.mark.timeout(20)
def test_no_expression_of_a_structural_tag_is_run_by_python() -> None:
    mark = "a" * 32 + "!"
    tag = {
        "type": "triggered_tags", "triggers": [mark], "excluded_patterns": ["(a+)+$"],
        "tags": [{"begin": mark, "content": {"type": "any_text"}, "end": "x"}],
    }  # fmt: skip
    given = {"type": "structural_tag", "format": tag}
    assert tags_grammar(given, lambda _: "{}", str, str, AddedTokens({}, []))
