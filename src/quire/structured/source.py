"""`grammar_of`: the grammar that `StructuredOutputsParams` ask for, in llguidance's notation.

A pure function of the parameters, called where a request is validated and where its grammar is
compiled. `trial` checks whether the grammar works.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from quire.errors import GrammarError
from quire.structured import limits
from quire.structured.params import FIELD, StructuredOutputsParams
from quire.structured.schemas.closing import closed
from quire.structured.schemas.exact import make_exact
from quire.structured.schemas.numbers import settle_numbers
from quire.structured.schemas.parts import SettledSchema, parts_of
from quire.structured.tags.parts import Part
from quire.structured.tags.texts import AddedTokens

WHITE_SPACE = r"[ \t]{1,40}|[ \t]{0,8}(\r?\n){1,2}[ \t]{0,40}"
"""Between two parts of JSON, where a request says nothing: a model may write blanks and newlines
without end where they are allowed. Enough for ten levels of indentation by four, after a line."""
_IS_LARK = re.compile(r"(?m)^[ \t]*(%llguidance\b|\??start[ \t]*:(?!:=))")
_INNER_SCHEMA = re.compile(r"%json\s{0,64}(?=\{)")


def grammar_of(spec: StructuredOutputsParams, added: AddedTokens) -> str:
    """`added`: of the vocabulary that the grammar is for. Raises GrammarError, which names the
    field, for what is too large or makes no grammar."""
    kind = spec.kind
    value = getattr(spec, kind)
    if isinstance(value, str):
        limits.check_bytes(kind, value)
    if spec.whitespace_pattern is not None:
        limits.check_bytes("whitespace_pattern", spec.whitespace_pattern)
    if kind in ("json", "json_object"):
        schema = parsed_schema("json", value) if kind == "json" else {"type": "object"}
        written = _written(schema, spec)
        if isinstance(written, SettledSchema):
            return _json_grammar(written)
        return _tags_grammar({"format": written}, spec, added)
    if kind == "regex":
        return _grammar(f"start: {regex_terminal(value)}")
    if kind == "choice":
        return _choice_grammar(value)
    if kind == "grammar":
        return _grammar(added.by_id(lark_of(value, spec)))
    tags = parsed_json("structural_tag", value)
    limits.check_depth("structural_tag", tags, limits.MAX_TAG_DEPTH)
    return _tags_grammar(tags, spec, added)


def parsed_schema(name: str, given: Any) -> Any:
    """A schema as plain JSON values, of a size that can be compiled. `name`: its field. Raises
    GrammarError."""
    if isinstance(given, str):
        given = parsed_json(name, given)
    limits.check_depth(name, given)
    if isinstance(given, bool):
        given = {} if given else {"enum": []}
    if not isinstance(given, dict):
        raise _error(name, "must be a JSON schema, an object")
    try:
        text = json.dumps(given, allow_nan=False, ensure_ascii=False)
        given = msgspec.json.decode(text)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _error(name, f"must hold only what JSON has: {error}") from None
    limits.check_bytes("json", text)
    limits.check_schema(name, given)
    return given


def parsed_json(name: str, text: str) -> Any:
    """The values of a JSON text. Raises GrammarError."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        limits.check_depth(name, [[]], 0)
        raise
    except (msgspec.DecodeError, ValueError) as error:
        raise _error(name, f"is not valid JSON: {error}") from None


def _tags_grammar(tags: Any, spec: StructuredOutputsParams, added: AddedTokens) -> str:
    from quire.structured.tags.grammar import tags_grammar  # rarely needed

    try:
        return tags_grammar(
            tags,
            lambda schema: inline_schema(schema, spec),
            lambda text: added.by_id(lark_of(text, spec)),
            regex_terminal,
            added,
        )
    except RecursionError:
        raise _error(spec.kind, "refers to parts or to exact numbers in too long a row") from None


def inline_schema(schema: Any, spec: StructuredOutputsParams) -> str | Part:
    """A schema within a Lark grammar, or the parts of a structural tag that it has to be."""
    if not isinstance(schema, SettledSchema):
        written = _written(parsed_schema("structural_tag", schema), spec)
        if not isinstance(written, SettledSchema):
            return written
        schema = written
    return _inline(schema)


def _inline(settled: SettledSchema) -> str:
    return f"%json {msgspec.json.encode(settled.schema).decode()}"


def regex_terminal(regex: str) -> str:
    """A regular expression within a Lark grammar."""
    return f"/{regex_body(regex)}/"


def regex_body(regex: str) -> str:
    """The same without the slashes."""
    from llguidance import regex_to_lark

    return regex_to_lark(regex, "")


def lark_of(grammar: str, spec: StructuredOutputsParams) -> str:
    """A grammar in Lark's notation, from that or GBNF. Raises GrammarError."""
    if _IS_LARK.search(grammar):
        return _with_inner_schemas(grammar, spec)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    limits.check_count("grammar", "rules", grammar.count("::="), limits.MAX_RULES)
    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise _error("grammar", "is nested too deeply") from None
    except Exception as error:  # the library raises bare exceptions
        raise _error(
            "grammar",
            f"is neither in Lark's notation, with a rule `start:`, nor in GBNF, with a rule "
            f"`root ::=`: {error}",
        ) from None


def _with_inner_schemas(grammar: str, spec: StructuredOutputsParams) -> str:
    """With the schemas of a Lark grammar written as any schema is."""
    pieces, end = list[str](), 0
    for found in _INNER_SCHEMA.finditer(grammar):
        if found.start() < end:
            continue  # a text within a schema
        try:
            schema, after = json.JSONDecoder().raw_decode(grammar, found.end())
        except (ValueError, RecursionError):
            raise _error("grammar", "has a %json that is not valid JSON") from None
        try:
            written = _written(parsed_schema("grammar", schema), spec)
        except GrammarError as error:
            message = str(error).replace(f"{FIELD}.json", f"{FIELD}.grammar")
            raise GrammarError(message, parameter=f"{FIELD}.grammar") from None
        if not isinstance(written, SettledSchema):
            raise _error(
                "grammar",
                "has a %json with a number of more than 15 digits, or between bounds that a 64-bit "
                "float cannot hold exactly; use structured_outputs.json or a structural tag for it",
            )
        pieces += [grammar[end : found.start()], _inline(written)]
        end = after
    return "".join([*pieces, grammar[end:]])


def _choice_grammar(choices: list[str]) -> str:
    limits.check_count("choice", "choices", len(choices), limits.MAX_CHOICES)
    limits.check_bytes("choice", "".join(choices))
    words = " | ".join(json.dumps(text) for text in dict.fromkeys(choices))
    return _grammar(f"start: CHOICE\nCHOICE: {words}")


def _json_grammar(settled: SettledSchema) -> str:
    grammar = {"name": "json_schema", "json_schema": settled.schema}
    return msgspec.json.encode({"grammars": [grammar]}).decode()


def _grammar(lark: str) -> str:
    return msgspec.json.encode({"grammars": [{"lark_grammar": lark}]}).decode()


def _written(schema: dict[str, Any], spec: StructuredOutputsParams) -> SettledSchema | Part:
    """The schema in the form that llguidance accepts; parts of a structural tag if it cannot read
    the numbers of the schema exactly."""
    if spec.disable_additional_properties is not False:
        schema = closed(schema)
    make_exact(schema)
    patterns = settle_numbers(schema)
    options = _options(schema, spec)
    if not patterns:
        return SettledSchema({**schema, "x-guidance": options})
    return parts_of(schema, patterns, options)


def _options(schema: dict[str, Any], spec: StructuredOutputsParams) -> dict[str, Any]:
    """The defaults, the schema's own options, the request's."""
    options: dict[str, Any] = {"whitespace_pattern": WHITE_SPACE}
    own = schema.get("x-guidance")
    if own is not None and not isinstance(own, dict):
        raise _error("json", "has an x-guidance that must be an object")
    if own and "whitespace_flexible" in own:
        del options["whitespace_pattern"]
    options |= own or {}
    if spec.whitespace_pattern is not None:
        options["whitespace_pattern"] = spec.whitespace_pattern
    if spec.disable_any_whitespace:
        options |= {"whitespace_flexible": False, "whitespace_pattern": None}
    return options


def _error(name: str, what: str) -> GrammarError:
    return GrammarError(f"{FIELD}.{name} {what}", parameter=f"{FIELD}.{name}")
