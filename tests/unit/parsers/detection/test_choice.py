"""What an operator says of the formats comes before what a checkpoint shows."""

from __future__ import annotations

import pytest

from quire.errors import ConfigError
from quire.parsers.detection.names import FormatChoice
from quire.parsers.detection.table import FORMATS_BY_TYPE, likely_formats
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS


def test_names_are_checked() -> None:
    assert FormatChoice.of("hermes", "qwen3") == FormatChoice("hermes", "qwen3")
    assert FormatChoice.of(None, "") == FormatChoice.of("auto", "auto") == FormatChoice()
    assert FormatChoice.of("none", "none") == FormatChoice("none", "none")
    assert FormatChoice.of("beam", "beam") == FormatChoice("hf", "hf")
    with pytest.raises(ConfigError, match=r"tool_call_parser='hermis'.*mean hermes.*auto, none"):
        FormatChoice.of("hermis", None)
    with pytest.raises(ConfigError, match="reasoning_parser='x' is not known; use one of: auto"):
        FormatChoice.of(None, "x")


def test_the_formats_of_model_types_are_registered() -> None:
    for kind, formats in FORMATS_BY_TYPE.items():
        assert set(formats.tools) <= TOOL_FORMATS.keys(), kind
        assert set(formats.reasoning) <= REASONING_FORMATS.keys(), kind
    assert likely_formats({"model_type": ["qwen3"]}) == likely_formats({}) == ((), ())
