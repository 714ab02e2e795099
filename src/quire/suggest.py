"""Suggests the known name that an unknown one was meant to be, for error messages.

A far suggestion is worse than none: names share words (`--enable-...`), so that two names may be
similar as a whole and mean different things. The words of both names must be similar too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CUTOFF = 0.7
"""Least similarity of the whole names, from 0 to 1."""
_WORD_CUTOFF = 0.7
"""Least similarity of two words."""
_MIN_BEGINNING = 3
"""Letters after which the beginning of a word stands for it: `len` for `length`."""
_SQUEEZED_CUTOFF = 0.88
"""Least similarity of two names without their separators, whose words may be cut differently."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` most likely misspells; None if none is similar."""
    found = difflib.get_close_matches(word, list(known), n=5, cutoff=_CUTOFF)
    return next((name for name in found if _is_slip(word, name)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or an empty text if no known word is near."""
    found = nearest(word, known)
    return f"; did you mean {found}?" if found else ""


def _is_slip(word: str, name: str) -> bool:
    """Whether the words of both are near each other; at most one of `name` may be left out."""
    own, others = _words(word), _words(name)
    if _similarity("".join(own), "".join(others)) >= _SQUEEZED_CUTOFF:
        return True
    if len(own) == 1 and len(others) > 1:
        return False
    left_out = [other for other in others if not any(_is_near(one, other) for one in own)]
    return all(any(_is_near(one, other) for other in others) for one in own) and len(left_out) <= 1


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[-_. ]+", name.lower()) if word]


def _is_near(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) >= _MIN_BEGINNING and long.startswith(short):
        return True
    return _similarity(one, other) >= _WORD_CUTOFF


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
