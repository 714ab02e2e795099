"""Texts in a Lark grammar: literal ones, which special tokens cut, and free ones.

A grammar is of bytes, and no bytes are a special token: it stands for itself. So a literal text is
cut at the special tokens in it, which the grammar names; a free text has none. Free texts end where
a literal text begins that they must not contain, spelled in ordinary tokens too, because a reader
of the text sees no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

ANYTHING = "(.|\\n)*"
SPACE = "[ \\t\\r\\n]"
_LARK_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?:\\.|[^/\\\n])+/?|//[^\n]*|<[^<>\s]+>')
"""A text, an expression, a comment or a name of a token in Lark's notation. A text or an expression
without end takes the rest of its line: to look for its end from each quote takes quadratic time."""


class AddedTokens:
    """The added tokens of a vocabulary, which a grammar may name by their texts.

    Special tokens are not text. The others are ordinary tokens, which a grammar in Lark's notation
    can also name as `<name>`.
    """

    def __init__(self, ids: Mapping[str, int], special: Collection[str]) -> None:
        """`ids`: by the text of each token. `special`: the texts of the special ones."""
        self.ids = ids
        """By text."""
        self._special = frozenset(special)
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __contains__(self, text: str) -> bool:
        """Whether this is the text of a special token."""
        return text in self._special

    def pieces(self, text: str) -> Iterator[str]:
        """The text in pieces: special tokens, and what is between them."""
        at = 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                yield text[at : found.start()]
            yield found[0]
            at = found.end()
        if at < len(text) or not text:
            yield text[at:]

    def may_cut(self, text: str, at: int) -> bool:
        """Whether no special token of the text has this place within it."""
        return all(not found.start() < at < found.end() for found in self._pattern.finditer(text))

    def literal(self, text: str) -> str:
        """The text within a grammar."""
        return " ".join(
            f"<[{self.ids[piece]}]>" if piece in self._special else quoted(piece)
            for piece in self.pieces(text)
        )

    def by_id(self, lark: str) -> str:
        """A grammar that names added tokens by their ids."""

        def with_id(found: re.Match[str]) -> str:
            token_id = self.ids.get(found[0])
            return found[0] if token_id is None else f"<[{token_id}]>"

        return _LARK_TOKEN.sub(with_id, lark)


def quoted(text: str) -> str:
    """A text without special tokens within a grammar."""
    return json.dumps(text)


@dataclass(frozen=True)
class TextForm:
    """The whole text matches each of some regular expressions, and none of others."""

    patterns: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def expression(self, end: str) -> str:
        """The same for texts that `end`, an expression, follows."""
        parts = [f"/({pattern}){end}/" for pattern in self.patterns or (ANYTHING,)]
        return " & ".join([*parts, *(f"~/({pattern}){end}/" for pattern in self.excluded)])


@dataclass(frozen=True)
class FreeText:
    """Constraints on a free text, as regular expressions."""

    excluded: tuple[str, ...] = ()
    """The text contains none of these."""
    not_first: tuple[str, ...] = ()
    """The text does not begin with one of these, even after white space."""
    forms: tuple[TextForm, ...] = ()
    """The text has one of these; none: any."""

    def without(self, texts: Iterable[str]) -> FreeText:
        """With none of these texts in it either."""
        return replace(self, excluded=(*self.excluded, *map(expression, texts)))


def free_text(text: FreeText, end: str = "") -> str:
    """The expression of a text that ends with `end`."""
    parts = [f"/{ANYTHING}{expression(end)}/"]
    if text.forms:
        forms = " | ".join(f"({form.expression(expression(end))})" for form in text.forms)
        parts.append(f"({forms})")
    if text.excluded:
        parts.append(f"~/{ANYTHING}({any_of(text.excluded)}){ANYTHING}/")
    if text.not_first:
        parts.append(f"~/{SPACE}*({any_of(text.not_first)}){ANYTHING}/")
    return " & ".join(parts)


def expression(text: str) -> str:
    """A regular expression within a grammar that matches this text alone."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def any_of(expressions: Iterable[str]) -> str:
    """An expression that matches what one of these matches."""
    return "|".join(dict.fromkeys(expressions))
