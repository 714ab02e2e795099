"""A plug-in of pytest for vLLM's interpreter: writes down what its parsers read and what they say.

It imports nothing of Quire. RECORDED_CASES names the file to write, STAND_IN_TOKENIZER one that is
taken for every tokenizer of a hub.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_WHOLE = ("extract_tool_calls", "extract_reasoning", "parse")
_STREAMED = ("extract_tool_calls_streaming", "extract_reasoning_streaming", "parse_delta")
_PARAMETERS = {
    "extract_tool_calls": ("model_output", "request"),
    "extract_reasoning": ("model_output", "request"),
    "parse": ("model_output", "request"),
    "extract_tool_calls_streaming": (
        "previous_text", "current_text", "delta_text", "previous_token_ids", "current_token_ids",
        "delta_token_ids", "request",
    ),
    "extract_reasoning_streaming": ("previous_text", "current_text", "delta_text"),
    "parse_delta": ("delta_text", "delta_token_ids", "request"),
}  # fmt: skip

_depth = 0
"""Parsers within parsers: only the outermost is asked by a test."""
_cases: list[dict[str, Any]] = []
_streams: dict[tuple[int, str], tuple[Any, dict[str, Any]]] = {}
"""By a parser's identity and the method: the parser, which has to stay alive, and its case."""


def pytest_configure() -> None:
    """Tokenizers come from no hub."""
    import vllm.tokenizers
    import vllm.tokenizers.registry
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    stand_in = PreTrainedTokenizerFast(tokenizer_file=os.environ["STAND_IN_TOKENIZER"])

    def take_it(*_: Any, **__: Any) -> Any:
        return stand_in

    AutoTokenizer.from_pretrained = take_it
    vllm.tokenizers.get_tokenizer = take_it
    vllm.tokenizers.registry.get_tokenizer = take_it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Records during the test; keeps the records if it passes."""
    for base in _bases():
        _wrap_all(base)
    _cases.clear()
    _streams.clear()
    yield
    if item.get_closest_marker("xfail") is not None:
        return
    with open(os.environ["RECORDED_CASES"], "a") as file:
        for case in _cases:
            if case.pop("is_part"):  # the begin of the text is not known
                continue
            del case["before"]
            said = {**case, "calls": [_plain_call(call) for call in case["calls"]]}
            file.write(json.dumps({"test": item.nodeid, **said}) + "\n")


def _bases() -> tuple[type, ...]:
    from vllm.parser.abstract_parser import Parser
    from vllm.reasoning import ReasoningParser
    from vllm.tool_parsers import ToolParser

    return Parser, ReasoningParser, ToolParser


def _wrap_all(cls: type) -> None:
    for name in (*_WHOLE, *_STREAMED):
        method = cls.__dict__.get(name)
        if method is not None and not hasattr(method, "is_recorded"):
            setattr(cls, name, _recorded(name, method))
    for child in cls.__subclasses__():
        _wrap_all(child)


def _recorded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        global _depth
        _depth += 1
        try:
            result = method(self, *args, **named)
        finally:
            _depth -= 1
        if _depth == 0:
            given = {**dict(zip(_PARAMETERS[name], args, strict=False)), **named}
            _note(self, name, given, result)
        return result

    call.is_recorded = True  # type: ignore[attr-defined]
    return call


def _note(parser: Any, name: str, given: dict[str, Any], result: Any) -> None:
    request = given.get("request")
    if name in _WHOLE:
        text = given["model_output"]
        case = _new_case(parser, name, request, text if isinstance(text, str) else "".join(text))
        _add_whole(case, name, result)
        return
    key, before = (id(parser), name), given.get("previous_text", "")
    # Some tests always pass an empty previous text.
    if key not in _streams or (_streams[key][1]["before"] and not before):
        _streams[key] = parser, _new_case(parser, name, request, "")
    case = _streams[key][1]
    case["is_part"] |= bool(before) and not case["text"]
    case["before"] = before
    case["text"] += given["delta_text"]
    if result is not None:
        _add_delta(case, result)
    if given.get("finished"):
        del _streams[key]


def _new_case(parser: Any, name: str, request: Any, text: str) -> dict[str, Any]:
    places = (request, "tools"), (parser, "tools"), (parser, "_tools")
    offered = [tool for place in places for tool in _listed(getattr(*place, None))]
    case = {
        "names": _names(type(parser).__name__, name), "method": name, "text": text, "reasoning": "",
        "content": "", "calls": [], "tools": dict(map(_offered, offered)),
        "before": "", "is_part": False,
    }  # fmt: skip
    _cases.append(case)
    return case


def _names(class_name: str, method: str) -> list[str]:
    """Under which vLLM's options know a class of parsers."""
    import vllm.reasoning
    import vllm.tool_parsers

    registered = (
        vllm.reasoning._REASONING_PARSERS_TO_REGISTER if "reasoning" in method
        else vllm.tool_parsers._TOOL_PARSERS_TO_REGISTER
    )  # fmt: skip
    return [name for name, (_, known) in registered.items() if known == class_name]


def _add_whole(case: dict[str, Any], name: str, result: Any) -> None:
    if name == "extract_reasoning":
        case["reasoning"], case["content"] = (part or "" for part in result)
    elif name == "parse":
        reasoning, content, calls = result
        case["reasoning"], case["content"] = reasoning or "", content or ""
        case["calls"] = [[call.name, call.arguments] for call in calls or ()]
    else:
        case["content"] = result.content or ""
        case["calls"] = [[c.function.name, c.function.arguments] for c in result.tool_calls]


def _add_delta(case: dict[str, Any], delta: Any) -> None:
    case["content"] += delta.content or ""
    case["reasoning"] += delta.reasoning or ""
    for part in delta.tool_calls or ():
        while part.index >= len(case["calls"]):
            case["calls"].append(["", ""])
        call = case["calls"][part.index]
        call[0] += (part.function and part.function.name) or ""
        call[1] += (part.function and part.function.arguments) or ""


def _plain_call(call: list[Any]) -> list[Any]:
    return [str(call[0]), call[1] if isinstance(call[1], str) else json.dumps(call[1])]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _offered(tool: Any) -> tuple[str, Any]:
    given = tool if isinstance(tool, dict) else tool.model_dump()
    function = given.get("function") or given
    return function["name"], function.get("parameters") or {}
