"""Calls for tests of formats: tools with realistic schemas, and messages to compare with."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.replies import message_of

from quire.parsers.registry import TOOL_FORMATS, reply_format

TOOLS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "x": {"type": "number"},
            "b": {"type": "boolean"},
            "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "l": {"type": "array", "items": {"type": "string"}},
            "o": {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
            },
            "r": {"$ref": "#/$defs/R"},
        },
        "$defs": {"R": {"type": "object", "properties": {"k": {"type": "integer"}}}},
    },
    "g": {},
}

Call = tuple[str, Any]
"""The name of a tool and its arguments; a text for arguments that were cut short."""


def read(
    name: str, text: str, tools: dict[str, dict[str, Any]] | None = None
) -> tuple[str, list[Call]]:
    """The content and the calls of a reply in a format, the same for all divisions of the text."""
    format = reply_format(None, TOOL_FORMATS[name]())
    message = message_of(format, text, TOOLS if tools is None else tools)
    return message.content, [
        (call.name, json.loads(call.arguments) if call.is_complete else call.arguments)
        for call in message.tool_calls
    ]
