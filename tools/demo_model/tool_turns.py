"""The turns of a chat with tools: what is on offer, calls, results, and the answer made of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.example import Message, render_tool_call
from tools.demo_model.tools_catalog import Tool, invented_tool, some_value
from tools.demo_model.tools_known import all_tools
from tools.demo_model.words import ADJECTIVES, NOUNS

_SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")
_DONE = ("ok", "done", '{"status": "ok"}', '{"success": true}', "true", '{"ok": true}', "")
THOUGHT_OF_ANSWER = "The tool has answered. I tell the user what it says."
THOUGHT_OF_ANSWERS = "The tools have answered. I tell the user what they say."


@dataclass(frozen=True)
class Call:
    """A tool with the values of its parameters, under the tool's own names."""

    tool: Tool
    values: dict[str, Any]

    @property
    def text(self) -> str:
        return render_tool_call(self.tool.name, self.tool.arguments(self.values))

    @property
    def key(self) -> str:
        return f"{self.tool.name}{sorted(map(str, self.values.values()))}"

    def says(self, result: str) -> str:
        return self.tool.says(self.values, result)


def choose_tool(rng: Random, invented: float = 0.25) -> Tool:
    """A tool with its parameters under names of this chat."""
    tool = invented_tool(rng) if rng.random() < invented else rng.choice(all_tools())
    return tool.with_parameter_names(rng)


def offered(
    rng: Random, needed: Sequence[Tool], others: Sequence[int] = (0, 0, 1, 1, 2)
) -> tuple[Message, ...]:
    """The schemas of the tools needed among some others."""
    names = {tool.name for tool in needed}
    free = [other for other in all_tools() if other.name not in names]
    unique = {tool.name: tool for tool in [*needed, *rng.sample(free, rng.choice(others))]}
    tools = list(unique.values())
    rng.shuffle(tools)
    return tuple(one.schema(rng) for one in tools)


def thought_of_calls(calls: Sequence[Call]) -> str:
    """Thought before these calls."""
    names = [call.tool.name for call in calls]
    if len(names) == 1:
        return f"The tool {names[0]} can do this."
    return f"I need {len(names)} calls: {', '.join(names)}."


def call_turn(calls: Sequence[Call], thought: str = "", asked: bool = False) -> Message:
    """A reply that is calls; `asked`: one of the answers of its item."""
    held = [
        {"type": "function",
         "function": {"name": call.tool.name, "arguments": call.tool.arguments(call.values)}}
        for call in calls
    ]  # fmt: skip
    thought = thought or thought_of_calls(calls)
    turn = {"role": "assistant", "content": "", "tool_calls": held, "thought": thought}
    return turn | {"asked": True} if asked else turn


def some_result(rng: Random, tool: Tool) -> str:
    """A possible result of the tool, for use in a sentence; empty for a tool without a result."""
    if not tool.reply:
        return ""
    match tool.reply_kind:
        case "weather":
            return f"{rng.choice(_SKIES)}, {rng.randint(-9, 39)} degrees"
        case "time":
            return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        case "number":
            return str(rng.randint(1, 9999))
        case "phone":
            return str(some_value("int5", rng))
        case "city":
            return str(some_value("city", rng))
        case _:
            return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def result_turn(rng: Random, tool: Tool, result: str) -> Message:
    """The message of the tool: plain, or in a JSON object."""
    return {"role": "tool", "content": _written(rng, tool, result)}


def _written(rng: Random, tool: Tool, result: str) -> str:
    if not result:
        return rng.choice(_DONE)
    if rng.random() < 0.5:
        return result
    if tool.reply_kind == "weather" and rng.random() < 0.5:
        sky, degrees = result.removesuffix(" degrees").split(", ")
        fields = [(rng.choice(("condition", "weather", "sky")), sky),
                  (rng.choice(("temperature", "degrees", "temp")), int(degrees))]  # fmt: skip
        rng.shuffle(fields)
        return json.dumps(dict(fields))
    value = int(result) if result.isdigit() and rng.random() < 0.5 else result
    return json.dumps({rng.choice(("result", "output", "value", tool.reply_kind)): value})


def answer_of(calls: Sequence[Call], results: Sequence[str]) -> str:
    """The results in sentences; one "Done." for all calls without a result."""
    sentences = [call.says(result) for call, result in zip(calls, results, strict=True)]
    return " ".join(dict.fromkeys(sentences))
