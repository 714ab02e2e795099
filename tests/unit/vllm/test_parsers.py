"""The classes of parsers by vLLM's names: they read with Quire's formats."""

from __future__ import annotations

from typing import Any

import pytest

import quire.vllm  # noqa: F401 - `import vllm` works from here on

WEATHER = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
TEXT = 'I look <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def request() -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        messages=[{"role": "user", "content": "x"}], model="m", tools=[WEATHER]
    )


def test_a_text_with_a_call_whole_and_streamed() -> None:
    from vllm.tool_parsers import ToolParserManager
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    parser = ToolParserManager.get_tool_parser("hermes")(None)
    assert type(parser) is Hermes2ProToolParser
    found = parser.extract_tool_calls(TEXT, request())
    assert (found.tools_called, found.content) == (True, "I look")
    [call] = found.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "f", '{"a": 1}')
    said = ""
    for end in range(1, len(TEXT) + 1):
        delta = parser.extract_tool_calls_streaming(
            TEXT[: end - 1], TEXT[:end], TEXT[end - 1 : end], [], [], [], request()
        )
        said += "" if delta is None or delta.content is None else delta.content
    assert said.strip() == "I look"
    assert parser.prev_tool_call_arr == [{"name": "f", "arguments": '{"a": 1}'}]
    assert parser.get_remaining_unstreamed_args() == ""
    asked = request()
    assert asked.skip_special_tokens is True
    assert parser.adjust_request(asked).skip_special_tokens is False


def test_reasoning_by_name_and_by_a_subclass() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    own = ReasoningParserManager.get_reasoning_parser("qwen3")(None)
    assert own.extract_reasoning("<think>a</think>b", request()) == ("a", "b")
    assert own.extract_reasoning("a</think>b", request()) == ("a", "b")
    assert own.extract_content_ids(["a", "<think>", "b", "</think>", "c"]) == ["c"]  # type: ignore[list-item]
    assert own.extract_reasoning("a", request()) == ("a", None)
    off = type(own)(None, chat_template_kwargs={"enable_thinking": False})
    assert off.extract_reasoning("a", request()) == (None, "a")

    class Vocabulary:
        def get_vocab(self) -> dict[str, int]:
            return {"<r>": 1, "</r>": 2, "x": 3}

    class Mine(BaseThinkingReasoningParser):
        start_token = "<r>"
        end_token = "</r>"

    parser = Mine(Vocabulary())
    assert parser.extract_reasoning("<r>a</r>b", None) == ("a", "b")
    assert parser.extract_reasoning("a", None) == ("a", None)
    assert (parser.is_reasoning_end([1, 3]), parser.is_reasoning_end([1, 3, 2])) == (False, True)
    assert parser.extract_content_ids([1, 3, 2, 3]) == [3]
    assert parser.count_reasoning_tokens([1, 3, 3, 2, 3]) == 2
    delta = parser.extract_reasoning_streaming(
        "<r>", "<r>x</r>x", "x</r>x", [1], [1, 3, 2, 3], [3, 2, 3]
    )
    assert delta is not None
    assert (delta.reasoning, delta.content) == ("x", "x")
    Mine.start_token = "<s>"
    with pytest.raises(RuntimeError, match="could not locate think start/end tokens"):
        Mine(Vocabulary())


def test_names_are_registered_once_and_found() -> None:
    from vllm.tool_parsers import ToolParser, ToolParserManager

    assert {"hermes", "mistral", "qwen3_coder"} <= set(ToolParserManager.list_registered())
    with pytest.raises(KeyError, match="'nope' not found"):
        ToolParserManager.get_tool_parser("nope")
    with pytest.raises(TypeError, match="must be subclass of ToolParser"):
        ToolParserManager.register_module(module=int)

    @ToolParserManager.register_module(["one", "two"])
    class Mine(ToolParser):
        """A parser."""

    try:
        assert ToolParserManager.get_tool_parser("two") is Mine
        with pytest.raises(KeyError, match="already registered"):
            ToolParserManager.register_module("one", force=False, module=Mine)
        with pytest.raises(NotImplementedError):
            Mine(None).extract_tool_calls("", None)
    finally:
        del ToolParserManager.given["one"], ToolParserManager.given["two"]


def test_records_dump_as_those_of_pydantic() -> None:
    from vllm.entrypoints.generate.base.protocol import (
        DeltaFunctionCall,
        DeltaMessage,
        DeltaToolCall,
    )

    function = DeltaFunctionCall(name="f").model_dump(exclude_none=True)
    assert function == {"name": "f"}
    delta = DeltaMessage(tool_calls=[DeltaToolCall(index=0, function=function)])
    assert delta.tool_calls[0].function.name == "f"
    assert delta.model_dump(exclude_unset=True) == {
        "tool_calls": [{"index": 0, "function": {"name": "f"}}]
    }
    assert DeltaMessage(content="a").model_dump(exclude_none=True) == {"content": "a"}
    assert (
        DeltaMessage.model_validate({"content": "a"}).model_dump_json(exclude_none=True)
        == '{"content":"a"}'
    )
    with pytest.raises(ValueError, match="str"):
        DeltaMessage.model_validate({"content": 1})
