"""When to end an output that repeats itself. Names and messages are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quire.errors import quoted
from quire.param_checks import as_int, error


class RepetitionDetectionParams(msgspec.Struct, omit_defaults=True):
    """When to end an output that repeats itself. Raises RequestError for inconsistent values."""

    max_pattern_size: int = 0
    """Maximum length of a pattern in tokens; 0 turns the detection off."""
    min_pattern_size: int = 0
    """Minimum length of a pattern in tokens; 0 means 1."""
    min_count: int = 0
    """Number of repetitions at the end of the output that end it; at least 2."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            given = as_int(f"repetition_detection.{name}", getattr(self, name))
            setattr(self, name, given)
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            message = (
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= "
                "max_pattern_size. Set both to 0 to disable repetitive pattern detection."
            )
            raise error("repetition_detection", self, message)
        if self.max_pattern_size > 0 and self.min_count < 2:
            message = (
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do "
                "not wish to detect repetitive patterns, set max_pattern_size to 0."
            )
            raise error("repetition_detection", self, message)


def checked_detection(given: Any) -> RepetitionDetectionParams:
    """Convert an object or a dict (from JSON)."""
    if isinstance(given, RepetitionDetectionParams):
        given.__post_init__()  # fields may have been assigned since
        return given
    fields = RepetitionDetectionParams.__struct_fields__
    if not isinstance(given, Mapping) or not set(given) <= set(fields):
        message = (
            f"repetition_detection must be RepetitionDetectionParams or a dict of "
            f"{', '.join(fields)}, got {quoted(given)}."
        )
        raise error("repetition_detection", given, message)
    return RepetitionDetectionParams(**given)


def is_repeating(token_ids: list[int], num_output: int, params: RepetitionDetectionParams) -> bool:
    """Whether the last `num_output` of the tokens end in `min_count` copies of one pattern, of a
    size that `params` allows."""
    if not params.max_pattern_size:
        return False
    longest = min(params.max_pattern_size, num_output // params.min_count)
    for size in range(max(params.min_pattern_size, 1), longest + 1):
        if token_ids[-1] != token_ids[-1 - size]:
            continue
        # Copies of a pattern: each token equals the token `size` places before it.
        span = size * params.min_count
        if token_ids[-span + size :] == token_ids[-span:-size]:
            return True
    return False
