"""Limits on structured outputs of a request, which are checked before anything is compiled.

They bound the work before a grammar is tried. Their errors name the field, its size and the limit.
`trials` bounds the time and memory of grammars that pass.
"""

from __future__ import annotations

from typing import Any

from quire.errors import GrammarError, quoted
from quire.structured.params import FIELD
from quire.structured.schemas.merging import most_merged, multiple_of, objects_within
from quire.units import KiB

MAX_BYTES = {
    "json": 512 * KiB,
    "regex": 64 * KiB,
    "choice": 512 * KiB,
    "grammar": 128 * KiB,
    "structural_tag": 512 * KiB,
    "whitespace_pattern": 1 * KiB,
}
MAX_DEPTH = 64
"""Maximum nesting of objects and arrays in a JSON schema."""
MAX_TAG_DEPTH = 80
"""Maximum nesting in a structural tag."""
MAX_CHOICES = 10_000
MAX_RULES = 1000
"""Maximum number of rules of a GBNF grammar."""
MAX_TAGS = 256
MAX_REPEATS = 1_000_000
"""Maximum repetitions of a part of a structural tag."""
MAX_EXCLUDED_TEXTS = 32
"""Maximum number of texts that a free text of a structural tag must not contain."""
MAX_EXCLUDED_TEXT = 256
"""Maximum characters of one such text."""
MAX_ENUM_VALUES = 10_000
"""Maximum number of values in all `enum` of a schema together."""
MAX_PROPERTIES = 1000
"""Maximum number of properties of one object."""
MAX_ALL_PROPERTIES = 4000
"""Maximum for all objects of a schema together; the time to compile grows with the square."""
MAX_PATTERN_PROPERTIES = 64
"""Maximum for all objects together, because each is compared with every other one."""
MAX_BRANCHES = 2000
"""Maximum number of branches of all `anyOf`, `oneOf` and `allOf` together."""
MAX_PREFIX_ITEMS = 4000
"""Maximum number of prefix items of all arrays together."""
MAX_PATTERN_BYTES = 16 * KiB
"""Maximum size of one `pattern` of a schema."""
MAX_MERGED_PATTERNS = 8
"""Maximum number of patterns and formats that one text must match."""
MAX_MULTIPLE = 10_000
"""Maximum of `multipleOf` without its decimal point, or of the least common multiple of several."""

MAX_WORK_S = 1.0
"""Processor time of one request's grammar: for its trial, for its compilation, and for what its
tokens take beyond `FAIR_TOKEN_S` each."""
MAX_TRIAL_S = 0.3
"""Maximum processor time of the trial; the largest schemas within these limits take a third of it.
Compiling for a whole vocabulary takes up to twice as long as the trial."""
FAIR_TOKEN_S = 5e-3
"""Processor time per token that is not counted; most tokens take a hundredth of it."""

MAX_ITEMS_IN_ROW = 5000
"""Maximum number of parser items of a grammar; an object has four for each optional property."""
MAX_LEXER_STATES = 50_000
"""Maximum number of lexer states of one request, of 1 to 2 kB each."""


def parser_limits() -> Any:
    """Limits of llguidance for following one grammar. A request beyond them ends with an error."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )


def check_work(seconds: float) -> None:
    """Raises GrammarError for a grammar that has taken too much of the processor."""
    if seconds > MAX_WORK_S:
        raise GrammarError(
            f"the grammar takes too much: more than {MAX_WORK_S:g} s of processor time to compile "
            f"and to follow, besides {FAIR_TOKEN_S * 1e3:g} ms a token; make it smaller or simpler",
            parameter=FIELD,
        )


def check_bytes(name: str, text: str) -> None:
    """Raises GrammarError for a text that is too long for its field."""
    size, most = len(text.encode()), MAX_BYTES[name]
    if size > most:
        raise too_much(name, f"has {size} bytes", f"at most {most}")


def check_depth(name: str, value: Any, most: int = MAX_DEPTH) -> None:
    """Raises GrammarError for objects and arrays that are nested too deeply, in vLLM's words."""
    level = [value]
    for _ in range(most + 1):
        level = [
            part
            for each in level
            if isinstance(each, (dict, list, tuple))
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, (dict, list, tuple))
        ]
        if not level:
            return
        if len(level) > MAX_BYTES["json"]:  # a small object may hold itself many times
            break
    raise too_much(
        name,
        "The JSON schema is nested too deeply: objects and arrays may nest at most "
        f"{MAX_DEPTH} levels",
    )


def check_schema(name: str, schema: Any) -> None:
    """Raises GrammarError for a schema, of checked depth, that would take too long to compile."""
    counts = dict.fromkeys(_COUNTED, 0)
    for node in objects_within(schema):
        for key in _COUNTED & node.keys():
            value = node[key]
            counts[key] += len(value) if isinstance(value, (dict, list)) else 0
        if isinstance(properties := node.get("properties"), dict):
            _at_most(name, "properties of one object", len(properties), MAX_PROPERTIES)
        if isinstance(required := node.get("required"), list):
            _at_most(name, "required properties of one object", len(required), MAX_PROPERTIES)
        if isinstance(pattern := node.get("pattern"), str):
            size = len(pattern.encode())
            _at_most(name, "bytes of one pattern", size, MAX_PATTERN_BYTES)
        multiple = multiple_of(node)
        _at_most(name, "units of multipleOf", multiple, MAX_MULTIPLE)
    _at_most(name, "enum values", counts["enum"], MAX_ENUM_VALUES)
    _at_most(name, "properties", counts["properties"], MAX_ALL_PROPERTIES)
    _at_most(name, "pattern properties", counts["patternProperties"], MAX_PATTERN_PROPERTIES)
    _at_most(name, "prefix items", counts["prefixItems"], MAX_PREFIX_ITEMS)
    branches = sum(counts[key] for key in ("anyOf", "oneOf", "allOf"))
    _at_most(name, "branches of anyOf, oneOf and allOf", branches, MAX_BRANCHES)
    merged = most_merged(schema)
    what = "patterns and formats for one text"
    _at_most(name, what, merged.patterns, MAX_MERGED_PATTERNS)
    _at_most(name, "units of multipleOf for one number", merged.multiple, MAX_MULTIPLE)
    if not merged.is_exact:
        raise GrammarError(
            f"{FIELD}.{name}: the bounds that allOf, $ref or branches give one number together "
            "cannot be held exactly; write minimum, maximum and the like in one schema",
            parameter=f"{FIELD}.{name}",
        )
    _check_references(name, schema)


def check_count(name: str, what: str, count: int, most: int) -> None:
    """Raises GrammarError for more than `most`."""
    _at_most(name, what, count, most)


def too_much(name: str, what: str, allowed: str = "") -> GrammarError:
    """The error of a field that is too large."""
    message = f"{FIELD}.{name} {what}, more than is allowed: {allowed}" if allowed else what
    return GrammarError(message, parameter=f"{FIELD}.{name}")


_COUNTED = {
    "enum", "properties", "patternProperties", "anyOf", "oneOf", "allOf", "prefixItems",
}  # fmt: skip


def _at_most(name: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise too_much(name, f"has {count} {what}", f"at most {most}")


def _check_references(name: str, schema: Any) -> None:
    """Refuses references to other documents: nothing is fetched."""
    if any("$id" in node or "id" in node for node in objects_within(schema)):
        return  # they may be of this document: the compiler knows
    for node in objects_within(schema):
        target = node.get("$ref")
        if isinstance(target, str) and not target.startswith("#"):
            raise GrammarError(
                f"{FIELD}.{name}: $ref {quoted(target)} is not in the schema, and nothing is "
                "fetched; put it under $defs and refer to it as '#/$defs/NAME'",
                parameter=f"{FIELD}.{name}",
            )
