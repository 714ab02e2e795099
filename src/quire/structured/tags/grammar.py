"""`tags_grammar`: a free text with tags in it, and what is between them, as a Lark grammar.

Takes both forms that vLLM has: `structures` with `triggers`, and `format`, a tree of parts. Every
part becomes one rule. Knows schemas only as the text that stands for them in a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from quire.structured import limits
from quire.structured.tags.fields import (
    NAME,
    count_of,
    flag_of,
    free_text_of,
    list_of,
    refuse,
    tag_error,
    tags_of,
    text_of,
)
from quire.structured.tags.texts import AddedTokens, free_text
from quire.structured.tags.triggered import text_before, triggered_tags

_AT_THE_END = (
    "any_text works as the content of a tag, as the whole format and as the last element of its "
    "sequence"
)


def tags_grammar(
    given: Any,
    schema: Callable[[Any], str | dict[str, Any]],
    grammar: Callable[[str], str],
    regex: Callable[[str], str],
    added: AddedTokens,
) -> str:
    """`schema` and `regex` write a schema and an expression within a grammar; `schema` may also
    return a part to be written instead. `grammar` makes Lark's notation of a grammar. `added`: of
    the vocabulary that it is for. Raises GrammarError."""
    if not isinstance(given, Mapping):
        raise tag_error("must be an object", given)
    if given.get("type", NAME) != NAME:
        raise tag_error("has the type structural_tag", given.get("type"))
    writer = _Writer(schema, grammar, regex, added)
    if "structures" in given:
        root = writer.part(triggered_tags_of(given), is_last=True)
    elif "format" in given:
        root = writer.part(given["format"], is_last=True)
    else:
        raise tag_error("needs either structures and triggers, or format", given)
    return writer.text(root)


def triggered_tags_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The older form as a part of the type `triggered_tags`. Raises GrammarError."""
    tags = []
    for structure in list_of(given, "structures"):
        begin, end = text_of(structure, "begin"), text_of(structure, "end")
        schema = structure.get("schema")
        content = {"type": "json_schema", "json_schema": {} if schema is None else schema}
        tags.append({"begin": begin, "content": content, "end": end})
    return {"type": "triggered_tags", "triggers": given.get("triggers"), "tags": tags}


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(
        self,
        schema: Callable[[Any], str | dict[str, Any]],
        grammar: Callable[[str], str],
        regex: Callable[[str], str],
        added: AddedTokens,
    ) -> None:
        self._schema, self._grammar, self._regex = schema, grammar, regex
        self.added = added
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        """Names of expressions."""
        self._expressions: dict[str, str] = {}
        """Rules of expressions."""
        self._written: dict[int, str] = {}
        """Rules of parts by the parts' identities, which `_keep` makes sure of."""
        self._keep: list[object] = []
        self._names: dict[str, str] = {}
        """Rules of parts by the parts' names."""
        self._has_named: set[str] = set()
        self._grammars: list[dict[str, str]] = []

    def text(self, root: str) -> str:
        """The whole grammar, whose text is `root`."""
        if missing := self._names.keys() - self._has_named:
            raise tag_error("has a reference to a part that is not there", min(missing))
        named = [f"{name}: {body}" for body, name in self._terminals.items()]
        lark = "\n".join([f"start: {root}", *self._rules, *named])
        grammars = [{"name": "tags", "lark_grammar": lark}, *self._grammars]
        return json.dumps({"grammars": grammars})

    def part(self, part: Any, *, is_last: bool = False) -> str:
        """The grammar text for one part of a format. `is_last`: the text ends with it."""
        if not isinstance(part, Mapping):
            raise tag_error("has a part that must be an object", part)
        kind = part.get("type")
        if kind == "any_text":
            if not is_last:
                raise tag_error(_AT_THE_END, kind)
            return self.terminal(free_text(free_text_of(part)))
        if kind == "sequence":
            elements = list_of(part, "elements")
            last = len(elements) - 1
            written = [
                self.part(element, is_last=is_last and i == last)
                for i, element in enumerate(elements)
            ]
            return " ".join(written)
        if kind == "or":
            elements = list_of(part, "elements")
            return f"({' | '.join(self.part(one, is_last=is_last) for one in elements)})"
        if kind == "triggered_tags":
            is_closed = flag_of(part, "at_least_one") and flag_of(part, "stop_after_first")
            if not is_last and not is_closed:
                raise tag_error(_AT_THE_END.replace("any_text", "triggered_tags"), kind)
            return triggered_tags(self, part)
        if not isinstance(kind, str) or kind not in _KINDS:
            known = sorted([*_KINDS, "any_text", "or", "sequence", "triggered_tags"])
            what = f"has a part of a type that does not work; use one of {', '.join(known)}"
            raise tag_error(what, kind)
        return _KINDS[kind](self, part)

    def rule(self, body: str, attribute: str = "") -> str:
        """A new rule."""
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attribute}: {body}")
        return name

    def terminal(self, expression: str) -> str:
        """The name of an expression."""
        return self._terminals.setdefault(expression, f"TEXT_{len(self._terminals)}")

    def _once(self, part: object, body: Callable[[], str]) -> str:
        """The rule of something that may stand in several places."""
        name = self._written.get(id(part))
        if name is None:
            self._keep.append(part)
            name = self._written[id(part)] = self.rule(body())
        return name

    def _const_string(self, part: Mapping[str, Any]) -> str:
        return self.added.literal(text_of(part, "value"))

    def _optional(self, part: Mapping[str, Any]) -> str:
        return f"({self.part(part.get('content'))})?"

    def _star(self, part: Mapping[str, Any]) -> str:
        return f"({self.part(part.get('content'))})*"

    def _plus(self, part: Mapping[str, Any]) -> str:
        return f"({self.part(part.get('content'))})+"

    def _tag(self, tag: Mapping[str, Any]) -> str:
        end, begin = text_of(tag, "end"), self.added.literal(text_of(tag, "begin"))
        return f"{begin} {self._before(tag.get('content'), {end: ''})}"

    def _before(self, part: Any, ends: Mapping[str, str]) -> str:
        """A part and one of these texts, each with what follows it. Only so can a free text stand
        before them, which has to end where one of them begins."""
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "any_text":
            if not all(ends):
                raise tag_error("any_text in a tag needs the tag's end", part)
            text = free_text_of(part)
            ways = [f"{text_before(self, end, [*ends], text)} {ends[end]}" for end in ends]
            return f"({' | '.join(ways)})"
        if kind == "members":
            return self._members(part, ends)
        if kind == "or":
            elements = list_of(part, "elements")
            return f"({' | '.join(self._before(one, ends) for one in elements)})"
        if kind == "sequence":
            *others, last = list_of(part, "elements")
            return " ".join([*map(self.part, others), self._before(last, ends)])
        ways = [f"{self.added.literal(end)} {rest}" for end, rest in ends.items()]
        return f"{self.part(part)} ({' | '.join(ways)})"

    def _repeat(self, part: Mapping[str, Any]) -> str:
        """`content`, at least `min` times and at most `max` times, if there is one."""
        least, most = count_of(part, "min"), count_of(part, "max")
        if most is not None and most < (least or 0):
            raise tag_error("has a repeat whose max is below its min", part)
        name = self.rule(self.part(part.get("content")))
        if most == 0:
            return '""'
        return f"{name}{{{least or 0},{'' if most is None else most}}}"

    def _named(self, part: Mapping[str, Any]) -> str:
        """`content`, which references to its `name` stand for, also within it."""
        rule, name = self._reference(part), text_of(part, "name")
        if name not in self._has_named:
            self._has_named.add(name)
            self._rules.append(f"{rule}: {self.part(part.get('content'))}")
        return rule

    def _reference(self, part: Mapping[str, Any]) -> str:
        return self._names.setdefault(text_of(part, "name"), f"named_{len(self._names)}")

    def _separated(self, part: Mapping[str, Any]) -> str:
        separator = self.added.literal(text_of(part, "separator"))
        tags = tags_of(part)
        one = self._once(tags, lambda: " | ".join(self._tag(tag) for tag in tags))
        more = "" if part.get("stop_after_first") else f" ({separator} {one})*"
        return f"({one}{more}){'' if part.get('at_least_one') else '?'}"

    def _members(self, part: Mapping[str, Any], ends: Mapping[str, str] | None = None) -> str:
        """`elements` in their order with `separator` between them; `optional` are the positions of
        those that may be missing. `more`: an element that may follow any number of times. `begin`
        and `end` are around all of it, if there is any; one of `ends` follows."""
        elements = list(part.get("elements") or []) if "more" in part else list_of(part, "elements")
        optional = part.get("optional", [])
        limits.check_count(NAME, "members", len(elements), limits.MAX_PROPERTIES)
        if not isinstance(optional, list):
            raise tag_error("needs optional, a list of positions", optional)
        ends = {"": ""} if ends is None else ends
        begin, separator, end = (
            text_of({name: "", **part}, name) for name in ("begin", "separator", "end")
        )
        last = {end + text: rest for text, rest in ends.items()}
        next_one, may_end = "", True  # the rule of the elements that follow; whether none may
        if "more" in part:
            next_one = self.rule("")
            body = self._before(part["more"], {separator: next_one, **last})
            self._rules[self._rules.index(f"{next_one}: ")] += body
        for i, element in reversed(list(enumerate(elements))):
            following = {separator: next_one} if next_one else {}
            body = self._before(element, following | (last if may_end else {}))
            is_optional = i in optional
            next_one = self.rule(f"{body} | {next_one}" if is_optional and next_one else body)
            may_end = may_end and is_optional
        some = f"{self.added.literal(begin)} {next_one}"
        if not may_end:
            return some
        none = [f"{self.added.literal(text)} {rest}" for text, rest in ends.items()]
        return f"({' | '.join([some, *none])})"

    def _json_schema(self, part: Mapping[str, Any]) -> str:
        refuse(part, "style", "json")

        def body() -> str:
            written = self._schema(part.get("json_schema"))
            return written if isinstance(written, str) else self.part(written)

        return self._once(part, body)

    def _regular_expression(self, part: Mapping[str, Any]) -> str:
        refuse(part, "excludes")
        pattern = text_of(part, "pattern")
        limits.check_bytes("regex", pattern)
        name = self._expressions.get(pattern)
        if name is None:
            name = self._expressions[pattern] = self.rule(self._regex(pattern))
        return name

    def _inner_grammar(self, part: Mapping[str, Any]) -> str:
        text = text_of(part, "grammar")
        limits.check_bytes("grammar", text)
        name = f"grammar_{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._grammar(text)})
        return f"@{name}"


_KINDS: dict[str, Callable[[_Writer, Mapping[str, Any]], str]] = {
    "const_string": _Writer._const_string,
    "json_schema": _Writer._json_schema,
    "regex": _Writer._regular_expression,
    "grammar": _Writer._inner_grammar,
    "optional": _Writer._optional,
    "star": _Writer._star,
    "plus": _Writer._plus,
    "repeat": _Writer._repeat,
    "named": _Writer._named,
    "reference": _Writer._reference,
    "tag": _Writer._tag,
    "tags_with_separator": _Writer._separated,
    "members": _Writer._members,
}
"""The parts that may stand anywhere, by their type. No writer holds itself by them: it would stay,
with its schemas, until cyclic garbage is collected, which a server does rarely."""
