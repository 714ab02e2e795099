"""`FormatChoice`: the names of formats that an operator gave, and the check of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.errors import ConfigError, quoted
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.suggest import did_you_mean

AUTO, NONE, DECLARED = "auto", "none", "hf"
"""Found from the checkpoint; plain text; what the checkpoint's `response_template` says."""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """What an operator said of the formats. None: they are found from the checkpoint."""

    tools: str | None = None
    reasoning: str | None = None

    @classmethod
    def of(cls, tools: str | None, reasoning: str | None) -> FormatChoice:
        """From the values of the options, where an empty text means that nothing was said.

        Raises ConfigError for a name that is not known.
        """
        return cls(
            _checked("tool_call_parser", tools, TOOL_FORMATS),
            _checked("reasoning_parser", reasoning, REASONING_FORMATS),
        )


def _checked(option: str, name: str | None, known: Iterable[str]) -> str | None:
    if name in (None, "", AUTO):
        return None
    names = (AUTO, NONE, DECLARED, *sorted(known))
    if name not in names:
        raise ConfigError(
            f"{option}={quoted(name)} is not known{did_you_mean(str(name), names)}; there are: "
            + ", ".join(names)
        )
    return name
