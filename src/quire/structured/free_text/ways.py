"""`first_ways`: the ways in which a text of a structural tag may begin, and what follows each.

Tells the free texts apart from what is around them, and of anything else only how it begins. May
have ways that no text takes, and has all that a text may take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quire.structured.source import regex_body
from quire.structured.tags.fields import flag_of, free_text_of
from quire.structured.tags.grammar import triggered_tags_of
from quire.structured.tags.starts import after_start, first_texts
from quire.structured.tags.texts import SPACE, AddedTokens, FreeText, any_of, expression
from quire.structured.tags.triggered import shortest

_PLAIN = ("const_string", "regex", "sequence", "or", "optional", "star")
"""Types of parts that are taken apart, as are free texts."""
_MOST_WAYS = 16
"""That are followed at once."""


@dataclass(eq=False, slots=True)
class Pattern:
    """A text that matches an expression."""

    expression: str
    """As it stands in a grammar. Empty: nothing."""
    then: Sequence[Way]


@dataclass(eq=False, slots=True)
class Text:
    """A free text, up to the first of its ends or the end of the reply."""

    ends: Mapping[str, Sequence[Way]]
    """What follows an end, by its expression."""
    excluded: Sequence[str]
    """Expressions of what it does not contain."""
    not_first: str
    """The expression of what it does not begin with; empty: it may begin with anything."""


class Other(Enum):
    """Ways of which there is no more to tell."""

    END = "the end of the reply"
    UNKNOWN = "something that is not followed"


Way = Pattern | Text | Other


def first_ways(tag: Mapping[str, Any], added: AddedTokens) -> list[Way]:
    """`tag`: a structural tag that `tags_grammar` takes."""
    whole = triggered_tags_of(tag) if "structures" in tag else tag["format"]
    return _ways(whole, [Other.END], added)


def texts_among(ways: Iterable[Way]) -> list[Text]:
    """All free texts that these ways lead to, the next ones first."""
    left, seen = deque(ways), dict[int, Way]()
    while left:
        way = left.popleft()
        if id(way) not in seen:
            seen[id(way)] = way
            if isinstance(way, Pattern):
                left += way.then
            elif isinstance(way, Text):
                left += [follows for then in way.ends.values() for follows in then]
    return [way for way in seen.values() if isinstance(way, Text)]


def _ways(part: Any, then: list[Way], added: AddedTokens) -> list[Way]:
    """Those of a part that these follow."""
    if not _is_plain(part) and not _has_text(part) and first_texts(part):
        return _begin(part)
    kind = part.get("type", "tag")
    found: list[Way]
    if kind == "const_string":
        found = [Pattern(expression(part["value"]), then)]
    elif kind == "regex":
        found = [Pattern(regex_body(part["pattern"]), then)]
    elif kind == "sequence":
        found = then
        for element in reversed(part["elements"]):
            found = _ways(element, found, added)
    elif kind == "or":
        found = [way for one in part["elements"] for way in _ways(one, then, added)]
    elif kind == "optional":
        found = [*_ways(part["content"], then, added), *then]
    elif kind == "star":
        once_more: list[Way] = []
        found = [Pattern("", once_more)]
        once_more += [*_ways(part["content"], found, added), *then]
    elif kind == "any_text":
        found = _text(free_text_of(part), {})
    elif kind == "triggered_tags":
        found = _triggered(part, then, added)
    elif kind == "tag" and part["content"].get("type") == "any_text":
        text = _text(free_text_of(part["content"]), {expression(part["end"]): then})
        found = [Pattern(expression(part["begin"]), text)]
    else:
        found = _begin(part)
    return found if len(found) <= _MOST_WAYS else [Other.UNKNOWN]


def _triggered(part: Mapping[str, Any], then: list[Way], added: AddedTokens) -> list[Way]:
    triggers = shortest(part["triggers"], added)
    tags, final = part.get("tags") or [], part.get("final_tags") or []
    must = flag_of(part, "at_least_one")
    if flag_of(part, "stop_after_first"):
        tags, final = [], [*tags, *final]
    ends: dict[str, list[Way]] = {expression(trigger): [] for trigger in triggers}
    first = free_text_of(part)
    later = _text(FreeText(first.excluded, (), first.patterns), ends)
    for trigger, ways in zip(triggers, ends.values(), strict=True):
        for tag, follows in [*((tag, later) for tag in tags), *((tag, then) for tag in final)]:
            rest = after_start(tag, trigger, added.may_cut)
            ways += [] if rest is None else _ways(rest, follows, added)
        if not 0 < len(ways) <= _MOST_WAYS:
            ways[:] = [Other.UNKNOWN]
    if flag_of(part, "is_bare"):
        if tags or not must:
            return [Other.UNKNOWN]
        return [Pattern(f"{SPACE}{{0,40}}{trigger}", ways) for trigger, ways in ends.items()]
    return _text(first, ends) if must or first.not_first else later


def _text(text: FreeText, ends: Mapping[str, Sequence[Way]]) -> list[Way]:
    if text.patterns:
        return [Other.UNKNOWN]
    excluded = [one for one in dict.fromkeys(text.excluded) if one not in ends]
    not_first = f"{SPACE}*({any_of(text.not_first)})" if text.not_first else ""
    return [Text(ends, excluded, not_first)]


def _begin(part: Any) -> list[Way]:
    """The alternatives of a part of which only the first texts are known."""
    texts = () if _may_be_empty(part) else first_texts(part)
    return (
        [Pattern(f"({any_of(map(expression, texts))})", [Other.UNKNOWN])]
        if texts
        else [Other.UNKNOWN]
    )


def _may_be_empty(part: Mapping[str, Any]) -> bool:
    """Whether a part that begins with texts, or one in it, may be missing."""
    is_list = part.get("type") == "tags_with_separator"
    return (is_list and not flag_of(part, "at_least_one")) or any(map(_may_be_empty, _within(part)))


def _is_plain(part: Mapping[str, Any]) -> bool:
    """Whether a part is of parts alone that are taken apart."""
    return part.get("type") in _PLAIN and all(map(_is_plain, _within(part)))


def _has_text(part: Mapping[str, Any]) -> bool:
    """Whether a part has a free text in it."""
    kind = part.get("type", "tag")
    return kind in ("any_text", "triggered_tags") or any(map(_has_text, _within(part)))


def _within(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    elements = part.get("elements")
    inner = [*(elements if isinstance(elements, list) else ()), part.get("content")]
    return [one for one in inner if isinstance(one, Mapping)]
