"""`reasoning_config`: the strings that begin and end the reasoning, from the operator's
settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import ConfigError, quoted
from quire.reasoning.marks import ReasoningMarks
from quire.suggest import did_you_mean

_BEGIN, _END, _PARSER = "reasoning_start_str", "reasoning_end_str", "reasoning_parser"
_FIELDS = (_BEGIN, _END, _PARSER)


def reasoning_marks(given: Mapping[str, Any] | None, parser: str) -> ReasoningMarks | None:
    """Build the marks from vLLM's fields; missing ones come from the reasoning format `parser`.
    None without marks. Raises ConfigError."""
    texts = {name: value for name, value in (given or {}).items() if value not in (None, "")}
    for name, value in texts.items():
        if name not in _FIELDS:
            message = f"reasoning_config: unknown field {quoted(name)}{did_you_mean(name, _FIELDS)}"
            raise ConfigError(message)
        if not isinstance(value, str):
            raise ConfigError(f"reasoning_config.{name} must be a string, got {quoted(value)}")
    own = _own_marks(texts.get(_PARSER, parser))
    begin = texts.get(_BEGIN) or (own.begin if own else "")
    forced_end = texts.get(_END, "")
    end = own.end if own else forced_end
    if not begin and not end:
        return None
    if not begin or not end:
        missing = _END if begin else _BEGIN
        raise ConfigError(
            f"reasoning_config must have {missing}; give both {_BEGIN} and {_END}, or {_PARSER}"
        )
    if forced_end and not forced_end.endswith(end):
        raise ConfigError(
            f"reasoning_config.{_END}={quoted(forced_end)} does not end the reasoning; it must end "
            f"with {end}"
        )
    return ReasoningMarks(begin, end, forced_end=forced_end)


def _own_marks(name: str) -> ReasoningMarks | None:
    if not name:
        return None
    from quire.parsers.detection.names import DECLARED, NONE, FormatChoice
    from quire.parsers.registry import REASONING_FORMATS

    chosen = FormatChoice.of(None, name).reasoning
    if chosen is None or chosen in (NONE, DECLARED):
        return None
    tags = REASONING_FORMATS[chosen]
    return ReasoningMarks(tags.begin, tags.end)
