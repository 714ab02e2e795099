"""`WhisperTokens`: the ids of a model's special tokens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperTokens:
    """The ids of a model's special tokens, and its rules for what is written."""

    sot: int
    eot: int
    transcribe: int
    translate: int
    no_speech: int | None
    no_timestamps: int
    first_timestamp: int
    startofprev: int
    languages: dict[str, int] = field(default_factory=dict)
    """By code."""
    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    alignment_heads: tuple[tuple[int, int], ...] = ()
    max_initial_timestamp_index: int | None = 50
    is_multilingual: bool = True
