"""Texts in a Lark grammar: literal ones, which special tokens cut, and free ones.

A grammar is of bytes, and no bytes are a special token: it stands for itself. So a literal text is
cut at the special tokens in it, which the grammar names; a free text has none. Free texts end where
a literal text begins that they must not contain, spelled in ordinary tokens too, because a reader
of the text sees no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

ANYTHING = "(.|\\n)*"
SPACE = "[ \\t\\r\\n]"


class SpecialTokens:
    """The special tokens of a vocabulary, and what stands for them in a grammar."""

    def __init__(self, terms: Mapping[str, str]) -> None:
        """`terms`: by the text of the token."""
        self._terms = terms
        longest_first = sorted(filter(None, terms), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __contains__(self, text: str) -> bool:
        return text in self._terms

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
        return " ".join(self._terms.get(piece) or quoted(piece) for piece in self.pieces(text))


NO_SPECIAL_TOKENS = SpecialTokens({})


def quoted(text: str) -> str:
    """A text without special tokens within a grammar."""
    return json.dumps(text)


def free_text(excluded: Sequence[str] = (), not_first: Sequence[str] = (), end: str = "") -> str:
    """The expression of a text with none of the `excluded` texts in it, that does not begin with
    one of `not_first`, nor with one of them behind white space, and ends with `end`."""
    parts = [f"/{ANYTHING}{_expression(end)}/"]
    if excluded:
        parts.append(f"~/{ANYTHING}({_any_of(excluded)}){ANYTHING}/")
    if not_first:
        parts.append(f"~/{SPACE}*({_any_of(not_first)}){ANYTHING}/")
    return " & ".join(parts)


def _any_of(texts: Sequence[str]) -> str:
    return "|".join(_expression(text) for text in dict.fromkeys(texts))


def _expression(text: str) -> str:
    """A regular expression within a grammar that matches this text alone."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")
