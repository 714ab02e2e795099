"""The conversations that are rendered to see how a chat template writes calls and reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

ANSWER = "Quiet words."
REASONING = "Slow thoughts."


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is put into a conversation and must be parsed back."""

    id: str
    """Nine letters and digits, as Mistral's templates require."""
    name: str
    arguments: Mapping[str, Any]

    def is_read_as(self, name: str, arguments: str) -> bool:
        """Whether the parsed name and arguments equal this call."""
        try:
            read = json.loads(arguments)
        except ValueError:
            return False
        return (
            name == self.name
            and isinstance(read, dict)
            and read.keys() == self.arguments.keys()
            and all(_is_same(read[key], value) for key, value in self.arguments.items())
        )


def _is_same(read: Any, given: Any) -> bool:
    """Compares values; a number may be read back as text, because some templates quote numbers."""
    return bool(read == given) or (isinstance(given, int) and read == str(given))


ONE = Call("call00001", "find_stones", {"place": "Lisbon"})
OTHER = Call("call00002", "count_birds", {"word": "amber", "number": 3})
RICH = Call(
    "call00003",
    "count_birds",
    {"word": 'she said "hi"\nand left', "exact": True, "near": ["a", "b"], "more": {"key": 1.5}},
)
"""Has arguments of all types, and text that must be escaped in JSON."""


def _tool(name: str, properties: Mapping[str, Any], required: list[str]) -> Message:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tool of the name {name}.",
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def _property(kind: str, **more: Any) -> Message:
    return {"type": kind, "description": f"Some {kind}.", **more}


TOOLS = [
    _tool("find_stones", {"place": _property("string")}, ["place"]),
    _tool(
        "count_birds",
        {
            "word": _property("string"),
            "number": _property("integer"),
            "exact": _property("boolean"),
            "near": _property("array", items={"type": "string"}),
            "more": _property("object", properties={"key": _property("number")}),
        },
        ["word"],
    ),
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
QUESTION: Message = {"role": "user", "content": "What is there?"}


def answered(content: str, reasoning: str | None = None) -> list[Message]:
    """The question, and an answer in words."""
    return [QUESTION, {"role": "assistant", "content": content, **_reasoned(reasoning)}]


def called(
    *calls: Call, content: str = "", reasoning: str | None = None, has_names_as_ids: bool = False
) -> list[Message]:
    """The question, and calls as its answer.

    `has_names_as_ids`: ids contain the names, for templates that write only the id.
    """
    tool_calls = [
        {
            "id": f"functions.{call.name}:{index}" if has_names_as_ids else call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for index, call in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": content or None, "tool_calls": tool_calls}
    return [QUESTION, {**reply, **_reasoned(reasoning)}]


def _reasoned(reasoning: str | None) -> Message:
    return {} if reasoning is None else {"reasoning": reasoning}
