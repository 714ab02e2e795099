"""What an operator says of the formats comes before what a checkpoint shows."""

from __future__ import annotations

import pytest

from quire.errors import ConfigError
from quire.parsers.detection.names import FormatChoice


def test_names_are_checked() -> None:
    assert FormatChoice.of("hermes", "qwen3") == FormatChoice("hermes", "qwen3")
    assert FormatChoice.of(None, "") == FormatChoice.of("auto", "auto") == FormatChoice()
    assert FormatChoice.of("none", "none") == FormatChoice("none", "none")
    assert FormatChoice.of("beam", "beam") == FormatChoice("hf", "hf")
    with pytest.raises(ConfigError, match=r"tool_call_parser='hermis'.*mean hermes.*auto, none"):
        FormatChoice.of("hermis", None)
    with pytest.raises(ConfigError, match="reasoning_parser='x' is not known; use one of: auto"):
        FormatChoice.of(None, "x")
