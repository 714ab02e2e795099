"""The formats by name: vLLM's names of tool parsers and reasoning parsers."""

from __future__ import annotations

from quire.parsers.format import ToolFormat
from quire.parsers.reasoning.families import FAMILIES
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.tool_formats.json.hermes import HermesCalls

TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": HermesCalls,
}
"""For `--tool-call-parser`."""

REASONING_FORMATS: dict[str, ReasoningTags] = FAMILIES
"""For `--reasoning-parser`."""
