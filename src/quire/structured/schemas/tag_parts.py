"""Parts of structural tags, as `parts` writes JSON with them."""

from __future__ import annotations

import re

from quire.structured.tags.parts import Part, members, optional, regex, repeat, sequence


def none_of(texts: list[str]) -> str:
    """The expression of all texts but these."""
    by_first: dict[str, list[str]] = {}
    for text in filter(None, texts):
        by_first.setdefault(text[0], []).append(text[1:])
    if not by_first:
        return ".+" if "" in texts else ".*"
    found = [f"[^{''.join(map(re.escape, by_first))}].*"]
    found += [f"{re.escape(char)}(?:{none_of(rest)})" for char, rest in by_first.items()]
    return "|".join(found if "" in texts else ["", *found])


def array(first: list[Part], rest: Part | None, least: int, most: int | None) -> Part:
    """An array of `least` to `most` items: the `first` items, then items like `rest` (None: no
    further items)."""
    more: Part | None = None
    if rest is not None and (most is None or most > len(first)):
        need = max(least - len(first), 0)
        left = None if most is None else most - len(first)
        following = sequence(regex(","), rest)
        if first:
            more = repeat(following, need, left)
        else:
            after_one = repeat(following, max(need - 1, 0), None if left is None else left - 1)
            more = sequence(rest, after_one)
            more = more if need else optional(more)
    for i, one in reversed([*enumerate(first[:most])]):
        more = sequence(*([regex(",")] if i else []), one, *([more] if more else []))
        more = more if i < least else optional(more)
    return sequence(regex(r"\["), *([more] if more else []), regex(r"\]"))


def between(begin: str, elements: list[Part], optional_at: list[int], end: str) -> Part:
    """The elements with commas, between two texts; `optional_at` are the positions of those
    that may be missing."""
    if not elements:
        return regex(re.escape(begin + end))
    inner = members(elements, optional_at, ",")
    return sequence(regex(re.escape(begin)), inner, regex(re.escape(end)))
