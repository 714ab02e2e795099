"""`triggered_tags`: a free text in which certain texts, the triggers, begin tags.

Some fields are our own. `final_tags`: tags after which the text ends. `not_first`: texts that the
free text does not begin with, nor with white space and one of them. `excluded_patterns` and
`not_first_patterns` are `excludes` and `not_first` as regular expressions, which stand in a grammar
as they are. `forms`: objects, of one of which the whole free text matches all `patterns` and none
of the `excluded_patterns`. `is_bare`: no text but white space is
before a tag. A tag may be a part of any type that begins with a literal text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from quire.errors import quoted as shown
from quire.structured import limits
from quire.structured.tags.fields import NAME, flag_of, free_text_of, list_of, tag_error
from quire.structured.tags.parts import after_start
from quire.structured.tags.texts import SPACE, AddedTokens, FreeText, expression, free_text, quoted

_SOME_SPACE = f"/{SPACE}{{0,40}}/"


class RuleWriter(Protocol):
    """Writes the rules of a grammar."""

    added: AddedTokens

    def rule(self, body: str, attribute: str = "") -> str:
        """A new rule."""

    def terminal(self, expression: str) -> str:
        """The name of an expression."""

    def part(self, part: Any, *, is_last: bool = False) -> str:
        """The grammar text for a part of a format."""


def text_before(
    writer: RuleWriter,
    marker: str,
    markers: Sequence[str],
    before: FreeText,
    *,
    is_bare: bool = False,
) -> str:
    """A free text up to the first of these markers, if that is `marker`, and the marker."""
    added = writer.added
    pieces = list(added.pieces(marker))
    # Expressions may be a request's, and are not run here: those of texts are compared.
    is_end = any(pattern in expression(pieces[0]) for pattern in before.excluded)
    if pieces[0] not in added and (is_end or len(pieces) == 1):
        # It ends with the marker as soon as that is there, so that it cannot contain one.
        spelled = [text for text in markers if any(piece in added for piece in added.pieces(text))]
        text = _SOME_SPACE if is_bare else free_text(before.without(spelled))
        lazy = writer.rule(f"{writer.terminal(text)} {quoted(pieces[0])}", "[lazy]")
        return " ".join([lazy, *map(added.literal, pieces[1:])])
    first = "" if pieces[0] in added else pieces.pop(0)
    text = free_text(before.without(markers), first)
    if is_bare:
        text = f"{_SOME_SPACE} {quoted(first)}" if first else _SOME_SPACE
    return f"{writer.terminal(text)} {added.literal(''.join(pieces))}"


def triggered_tags(writer: RuleWriter, part: Mapping[str, Any]) -> str:
    """The rules of such a part. Raises GrammarError."""
    triggers = list_of(part, "triggers")
    for trigger in triggers:
        if not isinstance(trigger, str) or not trigger:
            raise tag_error("needs triggers, a list of texts", trigger)
    triggers = shortest(triggers, writer.added)
    tags = _by_trigger(writer, part, "tags", triggers)
    final = _by_trigger(writer, part, "final_tags", triggers)
    if not tags and not final:
        raise tag_error("No structural tags found in the grammar spec.", None)
    at_least_one = flag_of(part, "at_least_one")
    if flag_of(part, "stop_after_first"):
        final = {name: [*tags.get(name, ()), *final.get(name, ())] for name in {**tags, **final}}
        tags = {}
    is_bare = flag_of(part, "is_bare")
    first_text = free_text_of(part)
    text = replace(first_text, not_first=())

    def one_of(bodies: _Bodies, before: FreeText) -> list[str]:
        return [
            f"{text_before(writer, name, triggers, before, is_bare=is_bare)} ({' | '.join(ways)})"
            for name, ways in bodies.items()
        ]

    def rest(before: FreeText) -> str:
        return writer.terminal(free_text(before.without(triggers)))

    ways = one_of(final, first_text)
    if not at_least_one:
        ways.append(rest(first_text))
    if tags:
        first = writer.rule(" | ".join(one_of(tags, first_text)))
        more = first if first_text == text else writer.rule(" | ".join(one_of(tags, text)))
        end = " | ".join([*one_of(final, text), rest(text)])
        ways.append(f"{first} {more}* ({end})")
    return f"({' | '.join(ways)})"


_Bodies = Mapping[str, Sequence[str]]
"""Possible texts after each trigger."""


def _by_trigger(
    writer: RuleWriter, part: Mapping[str, Any], name: str, triggers: Sequence[str]
) -> dict[str, list[str]]:
    """The rules of the tags in the field `name`, by the triggers that they begin with."""
    if part.get(name) in (None, []):
        return {}
    tags = list_of(part, name)
    limits.check_count(NAME, "tags", len(tags), limits.MAX_TAGS)
    may_cut = writer.added.may_cut
    bodies: dict[str, list[str]] = {}
    for tag in tags:
        rests = {trigger: after_start(tag, trigger, may_cut) for trigger in triggers}
        found = {trigger: rest for trigger, rest in rests.items() if rest is not None}
        if not found:
            begin = tag.get("begin") if isinstance(tag, Mapping) else None
            raise tag_error(
                f"Trigger {shown(begin or tag)} not found in triggers {shown(triggers)}", None
            )
        for trigger, rest in found.items():
            bodies.setdefault(trigger, []).append(writer.part(rest))
    return bodies


def shortest(triggers: Sequence[str], added: AddedTokens) -> list[str]:
    """The triggers that do not begin with another one."""
    return [
        text
        for text in dict.fromkeys(triggers)
        if not any(
            text != other and text.startswith(other) and added.may_cut(text, len(other))
            for other in triggers
        )
    ]
