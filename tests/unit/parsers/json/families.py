"""How each family whose calls are JSON writes them: what a model's reply would be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, with its country"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "fs/write-file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "string"}},
            "mode": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "options": {
                "type": "object",
                "properties": {"overwrite": {"type": "boolean"}, "owner": {"type": "string"}},
            },
        },
        "required": ["path", "lines"],
    },
    "now": {"type": "object", "properties": {}},
}
CALLS: list[list[Call]] = [
    [("get_weather", {"city": "Reykjavík, Iceland", "unit": "celsius", "days": 3})],
    [("now", {})],
    [
        ("fs/write-file", {"path": "C:\\tmp\\a b", "lines": ['say "hi"\n', "{</tool_call>]"],
         "mode": None, "options": {"overwrite": True}}),
        ("now", {}),
        ("get_weather", {"city": "<東京> 🎌"}),
    ],
]  # fmt: skip


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects(calls: Sequence[Call], name: str = "name", arguments: str = "arguments") -> list[str]:
    return [_text({name: tool, arguments: values}) for tool, values in calls]


def _list(calls: Sequence[Call]) -> str:
    return f"[{', '.join(_objects(calls))}]"


def _tagged(begin: str, between: str, end: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: between.join(f"{begin}{call}{end}" for call in _objects(calls))


def _cohere(calls: Sequence[Call]) -> str:
    numbered = (
        {"tool_call_id": str(i), "tool_name": tool, "parameters": values}
        for i, (tool, values) in enumerate(calls)
    )
    return f"<|START_ACTION|>[{', '.join(map(_text, numbered))}]<|END_ACTION|>"


def _kimi(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{tool}:{i}<|tool_call_argument_begin|>{_text(values)}"
        "<|tool_call_end|>"
        for i, (tool, values) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def _deepseek(head: str, tail: str, between: str) -> Callable[[Sequence[Call]], str]:
    def written(calls: Sequence[Call]) -> str:
        each = (
            f"<｜tool▁call▁begin｜>{head.format(tool)}{_text(values)}{tail}<｜tool▁call▁end｜>"
            for tool, values in calls
        )
        return f"<｜tool▁calls▁begin｜>{between.join(each)}<｜tool▁calls▁end｜>"

    return written


_HERMES = _tagged("<tool_call>\n", "\n", "\n</tool_call>")
WRITTEN: dict[str, Callable[[Sequence[Call]], str]] = {
    "apertus": lambda calls: (
        f"<|tools_prefix|>[{', '.join(_text({tool: values}) for tool, values in calls)}]"
        "<|tools_suffix|>"
    ),
    "cohere_command3": _cohere,
    "cohere_command4": _cohere,
    "deepseek_v3": _deepseek("function<｜tool▁sep｜>{}\n```json\n", "\n```", "\n"),
    "deepseek_v31": _deepseek("{}<｜tool▁sep｜>", "", ""),
    "ernie45": _HERMES,
    "gigachat3": _tagged("<|function_call|>", "\n", ""),
    "granite": lambda calls: f"<|tool_call|>{_list(calls)}",
    "granite-20b-fc": _tagged("<function_call> ", "\n", ""),
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hunyuan_a13b": lambda calls: f"<tool_calls>{_list(calls)}</tool_calls>",
    "inkling": lambda calls: "".join(
        f'<|message_model|><|content_invoke_tool_json|>{{"name":{_text(tool)},"args":'
        f"{_text(values)}}}<|end_message|>"
        for tool, values in calls
    ),
    "internlm": lambda calls: "\n".join(
        f"<|action_start|><|plugin|>\n{call}<|action_end|>"
        for call in _objects(calls, arguments="parameters")
    ),
    "jamba": lambda calls: f"<tool_calls>{_list(calls)}</tool_calls>",
    "kimi_k2": _kimi,
    "llama3_json": lambda calls: "; ".join(_objects(calls, arguments="parameters")),
    "llama4_json": lambda calls: "; ".join(_objects(calls, arguments="parameters")),
    "longcat": _tagged("<longcat_tool_call>\n", "\n", "\n</longcat_tool_call>"),
    "mistral": lambda calls: "".join(
        f"[TOOL_CALLS]{tool}[ARGS]{_text(values)}" for tool, values in calls
    ),
    "mistral_list": lambda calls: f"[TOOL_CALLS] {_list(calls)}",
    "phi4_mini_json": lambda calls: f"functools{_list(calls)}",
    "qwen3_json": _HERMES,
    "solar_open": lambda calls: (
        "<|tool_calls|>"
        + "".join(
            f"<|tool_call:begin|>a1b2c3d4e{i}<|tool_call:name|>{tool}<|tool_call:args|>{_text(values)}"
            "<|tool_call:end|>"
            for i, (tool, values) in enumerate(calls)
        )
    ),
    "xlam": _list,
}
"""By the name of the format: the text of calls, as the family's chat template writes it."""
