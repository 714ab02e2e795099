"""Reads a `tool_choice` that names tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import RequestError, quoted
from quire.server.conversation.conversation import ToolChoice

_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


def named_choice(choice: Any) -> ToolChoice:
    """The choice of one tool or of some. Raises RequestError."""
    if not isinstance(choice, Mapping):
        raise RequestError(
            f"Invalid value for `tool_choice`: {quoted(choice)}! Only named tools, "
            '"none", "auto" or "required" are supported.',
            parameter="tool_choice",
        )
    if choice.get("type") == "allowed_tools":
        return _allowed(choice)
    return ToolChoice.of_one(_named(choice))


def _allowed(choice: Mapping[str, Any]) -> ToolChoice:
    """OpenAI's `allowed_tools`: a choice among some of the tools."""
    allowed = choice.get("allowed_tools", choice)
    mode, given = allowed.get("mode", "auto"), allowed.get("tools")
    if not isinstance(given, list) or not given:
        raise RequestError(
            "tool_choice.allowed_tools.tools must be a list of tools that is not empty",
            parameter="tool_choice",
        )
    return ToolChoice(mode, [_named(one if isinstance(one, Mapping) else {}) for one in given])


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(
            f"Invalid value for `function`: `{quoted(function)}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function",
        )
    if "name" not in function:
        raise RequestError(
            f"Expected field `name` in `function` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise RequestError(
            f"Invalid `name` in `function`: `{quoted(name)}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    return name
