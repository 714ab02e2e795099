"""The content that vLLM's parser classes return for a whole reply with calls.

The server returns all text of the model. The classes of vLLM 0.32 drop some of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.parsers.format import Schemas, ToolFormat


@dataclass(frozen=True)
class WholeRules:
    """The rules of one family."""

    content: Literal["all", "before", "none"] = "all"
    """Which text besides calls is content: all of it, without the white space around calls; as it
    is before the first call; none."""
    is_strict: bool = False
    """Whether a call that is cut short, or whose arguments are not JSON, makes the whole reply
    content."""
    is_checked: bool = False
    """Whether a call of a tool that is not offered, or without an argument that is required, does
    too."""

    def content_of(self, text: str, content: str, tools: ToolFormat | None) -> str:
        """The content of a reply that has calls; `content`: all of it."""
        if self.content == "none":
            return ""
        places = [at for mark in (tools.markers if tools else ()) if (at := text.find(mark)) >= 0]
        if self.content == "all" or not places:
            return content
        before = text[: min(places)]
        return before if before.strip() else ""

    def refuses(self, calls: Sequence[Any], num_ended: int, tools: Schemas) -> bool:
        """Whether these calls make the reply content. `num_ended`: how many are complete; `tools`:
        those that are offered."""
        if not self.is_strict:
            return False
        return num_ended < len(calls) or not all(
            self._is_right(call.name, call.arguments, tools) for call in calls
        )

    def _is_right(self, name: str, arguments: str, tools: Schemas) -> bool:
        try:
            given = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        if not self.is_checked:
            return True
        required = tools[name].get("required", ()) if name in tools else None
        return required is not None and isinstance(given, dict) and {*required} <= given.keys()


_ANY = WholeRules()
_BEFORE = WholeRules("before", is_strict=True)
_RULES: dict[str, WholeRules] = {
    **dict.fromkeys(
        (
            "deepseek_v3",
            "deepseek_v31",
            "granite-20b-fc",
            "hermes",
            "hunyuan_a13b",
            "hy_v3",
            "hy_v4",
            "jamba",
            "longcat",
        ),
        _BEFORE,
    ),
    "functiongemma": WholeRules(is_strict=True),
    "gigachat3": WholeRules("before"),
    "kimi_k2": WholeRules("before"),
    "llama3_json": WholeRules("none", is_strict=True),
    "llama4_json": WholeRules("none", is_strict=True),
    "dots": WholeRules(is_strict=True, is_checked=True),
    "minicpm5": WholeRules("none", is_strict=True, is_checked=True),
}


def whole_rules(name: str) -> WholeRules:
    """Those of the family whose calls have this name."""
    return _RULES.get(name, _ANY)
