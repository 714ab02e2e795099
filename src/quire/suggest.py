"""The nearest known word to one that is not known, for the end of error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CUTOFF = 0.65
"""Least similarity, from 0 to 1. A suggestion that is far from the word is worse than none."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known word is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=_CUTOFF)
    return f"; did you mean {found[0]}?" if found else ""
