"""`FormatChoice`: the format names that an operator chose, and their validation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.errors import ConfigError, quoted
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.suggest import did_you_mean

AUTO, NONE, DECLARED = "auto", "none", "hf"
"""The format is detected; replies are plain text; the checkpoint's `response_template` is used."""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """Format names that an operator chose. None: the format is detected from the checkpoint."""

    tools: str | None = None
    reasoning: str | None = None

    @classmethod
    def of(cls, tools: str | None, reasoning: str | None) -> FormatChoice:
        """Create a choice from option values; an empty text means that the option is not set.

        Raises ConfigError for an unknown name.
        """
        return cls(
            _checked("tool_call_parser", tools, TOOL_FORMATS),
            _checked("reasoning_parser", reasoning, REASONING_FORMATS),
        )


def _checked(option: str, name: str | None, known: Iterable[str]) -> str | None:
    if name in (None, "", AUTO):
        return None
    if name == "beam":  # vLLM's name of the same for one family
        return DECLARED
    names = (AUTO, NONE, DECLARED, *sorted(known))
    if name not in names:
        raise ConfigError(
            f"{option}={quoted(name)} is not known{did_you_mean(str(name), names)}; use one of: "
            + ", ".join(names)
        )
    return name
