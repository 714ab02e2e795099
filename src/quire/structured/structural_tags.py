"""`tags_grammar`: a free text with tags in it, and what is between them, as a Lark grammar.

Takes both forms that vLLM has: `structures` with `triggers`, and `format`, a tree of parts. Every
part becomes one rule. Knows schemas only as the text that stands for them in a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from quire.errors import GrammarError, quoted
from quire.structured import limits
from quire.structured.params import FIELD

_NAME = "structural_tag"
_TEXT = "/(.|\\n)*/"
_AT_THE_END = (
    "any_text works as the content of a tag, as the whole format and as the last element of its "
    "sequence"
)


def tags_grammar(
    given: Any,
    schema: Callable[[Any], str],
    grammar: Callable[[str], str],
    regex: Callable[[str], str],
) -> str:
    """`schema` and `regex` write a schema and an expression within a grammar; `grammar` makes
    Lark's notation of a grammar. Raises GrammarError."""
    if not isinstance(given, Mapping):
        raise _error("must be an object", given)
    if given.get("type", _NAME) != _NAME:
        raise _error("has the type structural_tag", given.get("type"))
    writer = _Writer(schema, grammar, regex)
    if "structures" in given:
        root = writer.triggered(_from_structures(given))
    elif "format" in given:
        root = writer.part(given["format"], is_last=True)
    else:
        raise _error("needs either structures and triggers, or format", given)
    return writer.text(root)


def _from_structures(given: Mapping[str, Any]) -> dict[str, Any]:
    """The older form as the format `triggered_tags`."""
    tags = []
    for structure in _list(given, "structures"):
        begin, end = _text(structure, "begin"), _text(structure, "end")
        schema = structure.get("schema")
        content = {"type": "json_schema", "json_schema": {} if schema is None else schema}
        tags.append({"begin": begin, "content": content, "end": end})
    return {"triggers": given.get("triggers"), "tags": tags}


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(
        self,
        schema: Callable[[Any], str],
        grammar: Callable[[str], str],
        regex: Callable[[str], str],
    ) -> None:
        self._schema, self._grammar, self._regex = schema, grammar, regex
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []
        self._kinds: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "const_string": lambda part: _quoted(_text(part, "value")),
            "json_schema": self._json_schema,
            "regex": self._regular_expression,
            "grammar": self._inner_grammar,
            "or": lambda part: f"({' | '.join(self._all(part, 'elements'))})",
            "optional": lambda part: f"({self.part(part.get('content'))})?",
            "star": lambda part: f"({self.part(part.get('content'))})*",
            "plus": lambda part: f"({self.part(part.get('content'))})+",
            "tag": self._tag,
            "tags_with_separator": self._separated,
            "members": self._members,
        }

    def text(self, root: str) -> str:
        """The whole grammar, whose text is `root`."""
        lark = "\n".join([f"start: {root}", *self._rules])
        grammars = [{"name": "tags", "lark_grammar": lark}, *self._grammars]
        return json.dumps({"grammars": grammars})

    def part(self, part: Any, *, is_last: bool = False) -> str:
        """What stands for one part of a format. `is_last`: the text ends with it."""
        if not isinstance(part, Mapping):
            raise _error("has a part that is no object", part)
        kind = part.get("type")
        if kind == "any_text":
            _only(part, "excludes")
            if not is_last:
                raise _error(_AT_THE_END, kind)
            return _TEXT
        if kind == "sequence":
            elements = _list(part, "elements")
            last = len(elements) - 1
            written = [
                self.part(element, is_last=is_last and i == last)
                for i, element in enumerate(elements)
            ]
            return " ".join(written)
        if kind == "triggered_tags":
            if not is_last:
                raise _error(_AT_THE_END.replace("any_text", "triggered_tags"), kind)
            return self.triggered(part)
        if not isinstance(kind, str) or kind not in self._kinds:
            known = ", ".join(sorted([*self._kinds, "any_text", "sequence", "triggered_tags"]))
            raise _error(f"has a part of a type that does not work; use one of {known}", kind)
        return self._kinds[kind](part)

    def triggered(self, part: Mapping[str, Any]) -> str:
        """A free text in which each trigger begins one of the tags that begin with it."""
        for name in ("at_least_one", "stop_after_first"):
            if not isinstance(part.get(name, False), bool):
                raise _error(f"{name} must be true or false", part[name])
        _only(part, "excludes")
        triggers = _list(part, "triggers")
        by_trigger: dict[str, list[str]] = {}
        for tag in self._tags(part):
            begin = _text(tag, "begin")
            trigger = next(
                (t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None
            )
            if trigger is None:
                raise _error(
                    f"Trigger {quoted(begin)} not found in triggers {quoted(triggers)}", None
                )
            body = f"{_quoted(begin[len(trigger) :])} {self._inside(tag)}"
            by_trigger.setdefault(trigger, []).append(body)
        tags = []
        for trigger, bodies in by_trigger.items():
            head = self._rule(f"{_TEXT} {_quoted(trigger)}", "[lazy]")
            tags.append(f"{head} ({' | '.join(bodies)})")
        one = self._rule(" | ".join(tags))
        if part.get("stop_after_first"):
            return one if part.get("at_least_one") else f"({one} | {_TEXT})"
        return f"({one}){'+' if part.get('at_least_one') else '*'} {_TEXT}"

    def _tag(self, tag: Mapping[str, Any]) -> str:
        begin = _text(tag, "begin")
        return f"{_quoted(begin)} {self._inside(tag)}"

    def _inside(self, tag: Mapping[str, Any]) -> str:
        """A tag's content and end."""
        end, content = _text(tag, "end"), tag.get("content")
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            if not end:
                raise _error("any_text in a tag needs the tag's end", tag)
            if content.get("excludes"):
                return self._text_without(_list(content, "excludes"), end)
            return self._rule(_TEXT, f"[suffix={_quoted(end)}]")
        return f"{self.part(content)} {_quoted(end)}"

    def _text_without(self, excluded: list[Any], end: str) -> str:
        """A text with none of the excluded texts in it, up to the first `end`."""
        limits.check_count(_NAME, "excludes", len(excluded), limits.MAX_EXCLUDED_TEXTS)
        for text in excluded:
            if not isinstance(text, str) or not text:
                raise _error("needs excludes, a list of texts", text)
            limits.check_count(_NAME, "characters of excludes", len(text), limits.MAX_EXCLUDED_TEXT)
        last, any_text = _expression(end), "(.|\\n)*"
        within = "|".join(_expression(text) for text in excluded)
        other = f"{any_text}({last}(.|\\n)+|({within}){any_text}{last})"
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: /{any_text}{last}/ & ~/{other}/")
        return name

    def _separated(self, part: Mapping[str, Any]) -> str:
        separator = _quoted(_text(part, "separator"))
        one = self._rule(" | ".join(self._tag(tag) for tag in self._tags(part)))
        more = "" if part.get("stop_after_first") else f" ({separator} {one})*"
        return f"({one}{more}){'' if part.get('at_least_one') else '?'}"

    def _members(self, part: Mapping[str, Any]) -> str:
        """`elements` in their order with `separator` between them, without those of `optional`."""
        separator, optional = _quoted(_text(part, "separator")), part.get("optional", [])
        elements = _list(part, "elements")
        limits.check_count(_NAME, "members", len(elements), limits.MAX_PROPERTIES)
        if not isinstance(optional, list):
            raise _error("needs optional, a list of positions", optional)
        first = more = '""'  # what may follow: with none before it, and with one
        for i, element in reversed(list(enumerate(elements))):
            one = self._rule(self.part(element))
            is_needed = i not in optional
            first = self._rule(f"{one} {more}" if is_needed else f"{one} {more} | {first}")
            more = self._rule(f"({separator} {one}){'' if is_needed else '?'} {more}")
        return first

    def _json_schema(self, part: Mapping[str, Any]) -> str:
        _only(part, "style", "json")
        return self._rule(self._schema(part.get("json_schema")))

    def _regular_expression(self, part: Mapping[str, Any]) -> str:
        _only(part, "excludes")
        pattern = _text(part, "pattern")
        limits.check_bytes("regex", pattern)
        return self._rule(self._regex(pattern))

    def _inner_grammar(self, part: Mapping[str, Any]) -> str:
        text = _text(part, "grammar")
        limits.check_bytes("grammar", text)
        name = f"grammar_{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._grammar(text)})
        return f"@{name}"

    def _all(self, part: Mapping[str, Any], name: str) -> list[str]:
        return [self.part(element) for element in _list(part, name)]

    def _tags(self, part: Mapping[str, Any]) -> list[Any]:
        tags = _list(part, "tags")
        limits.check_count(_NAME, "tags", len(tags), limits.MAX_TAGS)
        if not tags:
            raise _error("No structural tags found in the grammar spec.", None)
        return tags

    def _rule(self, body: str, attribute: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attribute}: {body}")
        return name


def _text(part: Any, name: str) -> str:
    value = part.get(name) if isinstance(part, Mapping) else None
    if not isinstance(value, str):
        raise _error(f"needs {name}, a text, in {quoted(part)}", value)
    return value


def _list(part: Mapping[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    if not isinstance(value, list) or not value:
        raise _error(f"needs {name}, a list that is not empty", value)
    return value


def _only(part: Mapping[str, Any], name: str, *values: object) -> None:
    """Refuses a field that asks for something else."""
    value = part.get(name)
    if value not in (None, [], *values):
        raise _error(f"has a part with {name}, which does not work; leave it out", value)


def _quoted(text: str) -> str:
    return json.dumps(text)


def _expression(text: str) -> str:
    """A regular expression within a grammar that matches this text alone."""
    return re.escape(text).replace("/", r"\/").replace("\n", r"n")


def _error(what: str, value: object) -> GrammarError:
    got = "" if value is None else f", got {quoted(value)}"
    return GrammarError(f"{FIELD}.{_NAME} {what}{got}", parameter=f"{FIELD}.{_NAME}", value=value)
