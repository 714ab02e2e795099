"""`TimestampRules`: which tokens a speech model may write next to timestamps."""

from __future__ import annotations

import msgspec


class TimestampRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rules for the tokens of one window. Timestamps are the last tokens of the vocabulary, in
    order. Source: openai/whisper, `whisper/decoding.py`, `ApplyTimestampRules`."""

    first: int
    """The token of the time 0."""
    end: int
    """The end token; those of texts are below it."""
    most_first: int | None = None
    """The largest time with which a reply may begin, counted in timestamps; None: any."""
    forbidden: list[int] = []
    """Tokens that are never written."""
    forbidden_first: list[int] = []
    """Tokens with which a reply does not begin."""
    is_on: bool = True
    """Whether timestamps are written: first of all, and then in pairs, never earlier than the one
    before. False: none is written."""
