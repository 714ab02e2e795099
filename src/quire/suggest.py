"""Suggests the known name that is most similar to an unknown one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CUTOFF = 0.65
"""Least similarity of a suggestion, from 0 to 1."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known word is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=_CUTOFF)
    return f"; did you mean {found[0]}?" if found else ""
