"""The classes of parsers by vLLM's names: they read with Quire's formats."""

from __future__ import annotations

import json
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
    assert (found.tools_called, found.content) == (True, "I look ")
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
    assert asked.skip_special_tokens is None
    assert parser.adjust_request(asked).skip_special_tokens is False


@pytest.mark.parametrize(
    ("family", "text"),
    [("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}'), ("mistral", '[TOOL_CALLS] [{"name": "f"}]')],
)
def test_ids_of_calls_have_the_form_that_the_template_takes(family: str, text: str) -> None:
    from vllm.tool_parsers import ToolParserManager

    parser = ToolParserManager.get_tool_parser(family)(None)
    [call] = parser.extract_tool_calls(text, request()).tool_calls
    delta = parser.extract_tool_calls_streaming("", text, text, [], [], [], request())
    assert delta is not None
    for each in (call.id, delta.tool_calls[0].id):
        assert len(each) == 9
        assert each.isalnum()


def test_tools_may_be_objects_or_mappings() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionToolsParam,
        FunctionDefinition,
    )
    from vllm.tool_parsers import ToolParserManager

    text = "<tool_call><function=f><parameter=n>5</parameter></function></tool_call>"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    for tool in (
        {"type": "function", "function": {"name": "f", "parameters": schema}},
        ChatCompletionToolsParam(function={"name": "f", "parameters": schema}),
        ChatCompletionToolsParam(function=FunctionDefinition(name="f", parameters=schema)),
    ):
        parser = ToolParserManager.get_tool_parser("qwen3_coder")(None, [tool])
        [call] = parser.extract_tool_calls(text, None).tool_calls
        assert json.loads(call.function.arguments) == {"n": 5}


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


TAGGED = "<think>a</think>b"


@pytest.mark.parametrize(
    ("family", "variables", "text", "said"),
    [
        ("deepseek_r1", {}, "a</think>", ("a", None)),
        ("deepseek_r1", {}, "a", ("a", None)),
        ("deepseek_r1", {}, "</think>b", ("", "b")),
        ("deepseek_v3", {}, TAGGED, (None, TAGGED)),
        ("deepseek_v3", {"thinking": True}, "a</think>b", ("a", "b")),
        ("holo2", {}, "a", ("a", None)),
        ("holo2", {"thinking": False}, "a", (None, "a")),
        ("hy_v3", {}, "a", (None, "a")),
        ("hy_v3", {"reasoning_effort": "high"}, "a", ("a", None)),
        ("minimax_m3", {}, "a</mm:think>b", (None, "a</mm:think>b")),
        ("minimax_m3", {}, "<mm:think>a</mm:think>b", ("a", "b")),
        ("minimax_m3", {"thinking_mode": "enabled"}, "a</mm:think>b", ("a", "b")),
        ("kimi_k2", {}, "a", ("a", None)),
        ("gemma4", {}, "a", (None, "a")),
        ("gemma4", {}, "a<channel|>b", ("a", "b")),
        ("qwen3", {}, "a\n\n<tool_call>\n<function=f>", ("a\n\n", "<tool_call>\n<function=f>")),
        ("qwen3", {"enable_thinking": False}, "a<tool_call>", (None, "a<tool_call>")),
    ],
)
def test_where_a_reply_begins_is_the_familys_rule(
    family: str, variables: dict[str, Any], text: str, said: tuple[str | None, str | None]
) -> None:
    """As vLLM 0.33's classes say of these texts."""
    from vllm.reasoning import ReasoningParserManager

    made = ReasoningParserManager.get_reasoning_parser(family)
    parser = made(None, chat_template_kwargs=variables)
    assert parser.extract_reasoning(text, request()) == said
    if family in ("gemma4", "minimax_m3") and "<" in text[1:] and not text.startswith("<"):
        return  # a stream cannot know of an end that comes later
    parts = {"reasoning": "", "content": ""}
    for end in range(1, len(text) + 1):
        delta = parser.extract_reasoning_streaming(
            text[: end - 1], text[:end], text[end - 1 : end], [], [], []
        )
        if delta is not None:
            parts["reasoning"] += delta.reasoning or ""
            parts["content"] += delta.content or ""
    assert parts == {"reasoning": said[0] or "", "content": said[1] or ""}


@pytest.mark.parametrize(
    ("family", "text", "variables", "expected"),
    [
        ("nemotron_v3", "a", {"enable_thinking": False}, (None, "a")),
        ("nemotron_v3", "<think>a", {"force_nonempty_content": True}, (None, "a")),
        ("nemotron_v3", "<think>a</think>b", {"force_nonempty_content": True}, ("a", "b")),
        ("nemotron_v3", "<think>a</think>\n", {"force_nonempty_content": True}, ("\n", "a")),
        ("nemotron_v3", "<think>a", {}, ("a", None)),
        ("granite_thinking_parser", "\na", {"enable_thinking": False}, (None, "\na")),
        ("granite_thinking_parser", "<think>a</think>", {"enable_thinking": False}, (None, "a")),
        (
            "granite_thinking_parser",
            "<think>a</think>\n\n",
            {"enable_thinking": False},
            ("a", None),
        ),
        ("qwen3", "a", {"enable_thinking": False}, ("a", None)),
    ],
)
def test_reasoning_is_the_content_where_a_request_asks_for_content(
    family: str, text: str, variables: dict[str, Any], expected: tuple[str | None, str | None]
) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager

    asked = ChatCompletionRequest(messages=[], chat_template_kwargs=variables)
    parser = ReasoningParserManager.get_reasoning_parser(family)(None)
    assert parser.extract_reasoning(text, asked) == expected


def test_reasoning_that_is_off_is_over() -> None:
    from vllm.reasoning import ReasoningParserManager

    class Tokens:
        def decode(self, ids: list[int]) -> str:
            return "".join(["<think>", "</think>", "a", "<|channel>"][one] for one in ids)

    def made(family: str, **variables: Any) -> Any:
        parser = ReasoningParserManager.get_reasoning_parser(family)
        return parser(Tokens(), chat_template_kwargs=variables)

    assert made("deepseek_v3").is_reasoning_end([2])
    assert made("deepseek_v3").extract_content_ids([2, 2]) == [2, 2]
    assert not made("deepseek_v3", thinking=True).is_reasoning_end([2])
    assert made("gemma4").is_reasoning_end([2])
    assert not made("gemma4").is_reasoning_end([2, 3])
    assert made("openai_gptoss").is_reasoning_end([])
    assert made("minimax_m3").is_reasoning_end_streaming([2], [2])
    assert not made("minimax_m3").is_reasoning_end_streaming([], [])
    assert not made("minimax_m3", thinking_mode="enabled").is_reasoning_end_streaming([2], [2])
    assert not made("qwen3").is_reasoning_end_streaming([2], [2])


DEEPSEEK = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>{}"
    "<\uff5ctool\u2581sep\uff5c>{}<\uff5ctool\u2581call\u2581end\uff5c>"
    "<\uff5ctool\u2581calls\u2581end\uff5c>"
)


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("hermes", "a \n<tool_call>{}</tool_call> b", "a \n"),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1', None),
        ("llama3_json", 'a {"name": "f", "parameters": {}} b', ""),
        ("xlam", '[{"name": "f", "arguments": {}}]', ""),
        ("minicpm5", 'a <function name="f"></function> b', ""),
        ("minicpm5", '<function name="g"></function>', None),
        ("deepseek_v3", "a" + DEEPSEEK.format("function", "f\n```json\n{}\n```") + "b", "ab"),
        ("deepseek_v31", "a" + DEEPSEEK.format("f", "{}") + "b", "a"),
    ],
)
def test_content_beside_calls_is_the_familys_rule(family: str, text: str, said: str | None) -> None:
    """As vLLM 0.33's classes say; None: the whole text, and no call."""
    from vllm.tool_parsers import ToolParserManager

    text = text.replace("{}<", '{"name": "f", "arguments": {}}<')
    found = ToolParserManager.get_tool_parser(family)(None).extract_tool_calls(text, request())
    assert found.tools_called is (said is not None)
    assert found.content == (text if said is None else said or None)


def test_a_stream_may_be_taken_up_in_its_middle() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    reasoning = ReasoningParserManager.get_reasoning_parser("granite")(None)
    before = "Here is my thought process: foo"
    for more in (" bar", " baz"):  # the same place twice
        delta = reasoning.extract_reasoning_streaming(before, before + more, more, [], [], [])
        assert delta is not None
        assert (delta.reasoning, delta.content) == (more, None)
    calls = ToolParserManager.get_tool_parser("hermes")(None)
    at = TEXT.index("1}")
    delta = calls.extract_tool_calls_streaming(TEXT[:at], TEXT, TEXT[at:], [], [], [], request())
    assert delta is not None
    assert delta.tool_calls[0].function.name is None
    assert delta.tool_calls[0].function.arguments
    assert calls.prev_tool_call_arr == [{"name": "f", "arguments": '{"a": 1}'}]


def test_two_kinds_of_constraints_are_refused_in_vllms_words() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="You can only use one kind of constraints"):
        ChatCompletionRequest(
            model="m", messages=[], structured_outputs={"regex": "a", "choice": ["a"]}
        )
