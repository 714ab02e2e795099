"""Requests of the HTTP API as classes."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind

from quire.errors import RequestError

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
NAMED = {"type": "function", "name": "f"}


def test_fields_are_attributes_with_vllms_defaults() -> None:
    request = ChatCompletionRequest(messages=HELLO, temperature=0.5, unheard_of=1)
    assert (request.temperature, request.n, request.top_logprobs) == (0.5, 1, 0)
    assert (request.stop, request.bad_words, request.messages[0]["content"]) == ([], [], "Hello")
    assert repr(CompletionRequest(prompt="x", n=2)) == "CompletionRequest(n=2, prompt='x')"
    assert BatchChatCompletionRequest(messages=[HELLO, HELLO]).messages[1][0].role == "user"
    assert ResponsesRequest(input="x", stop=["a"]).stop == ["a"]
    with pytest.raises(AttributeError, match="has no field no_field"):
        request.no_field  # noqa: B018


def test_a_request_goes_to_json_and_back() -> None:
    given = {"prompt": "x", "n": 2, "stop": None}
    request = CompletionRequest.model_validate(given)
    assert CompletionRequest.model_validate(request) is request
    assert request.model_dump(exclude_unset=True) == given
    assert request.model_dump(exclude_unset=True, exclude_none=True) == {"prompt": "x", "n": 2}
    assert request.model_dump()["echo"] is False
    again = CompletionRequest.model_validate_json(request.model_dump_json())
    assert again.model_dump() == request.model_dump()


def test_sampling_parameters_are_those_of_the_server() -> None:
    request = ChatCompletionRequest(
        messages=HELLO, n=3, top_p=0.5, logprobs=True, top_logprobs=2, stream=True, seed=7
    )
    params = request.to_sampling_params(10, {"top_p": 0.9, "top_k": 5, "temperature": 0.3})
    assert (params.n, params.top_p, params.top_k, params.temperature) == (3, 0.5, 5, 0.3)
    assert (params.max_tokens, params.logprobs, params.seed) == (10, 2, 7)
    assert params.output_kind == RequestOutputKind.DELTA
    params = CompletionRequest(prompt="x", bad_words=["a"]).to_sampling_params(max_tokens=1)
    assert (params.bad_words, params.output_kind) == (["a"], RequestOutputKind.FINAL_ONLY)


def test_the_sampling_parameters_of_a_response() -> None:
    fields = {"stop": "a", "include": ["message.output_text.logprobs"], "vllm_xargs": {"a": 1}}
    request = ResponsesRequest(input="x", instructions="y", max_output_tokens=5, **fields)
    params = request.to_sampling_params(10, {"top_k": 5})
    assert (params.stop, params.logprobs, params.extra_args) == (["a"], 0, {"a": 1})
    assert (params.max_tokens, params.top_k, params.min_p) == (5, 5, 0.0)
    assert params.output_kind == RequestOutputKind.FINAL_ONLY
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    params = ResponsesRequest(input="x", stream=True, text=form).to_sampling_params(10)
    assert (params.max_tokens, params.extra_args) == (10, {})
    assert params.structured_outputs.json == {"type": "object"}
    assert params.output_kind == RequestOutputKind.DELTA


def test_the_tool_choice_of_a_response() -> None:
    pytest.importorskip("openai")
    assert [ResponsesRequest(input="x", **one).tool_choice for one in (
        {}, {"tools": []}, {"tool_choice": "auto"}, {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none"}, {"tools": [TOOL], "tool_choice": "required"},
    )] == ["none", "none", "none", "auto", "none", "required"]  # fmt: skip
    assert ResponsesRequest(input="x", tools=[TOOL], tool_choice=NAMED).tool_choice.name == "f"


def test_templates_get_the_choice_of_tools_and_the_form_of_the_reply() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    request = ChatCompletionRequest(
        messages=[], tools=[tool], response_format={"type": "json_object"}
    )
    params = request.build_chat_params(None, "auto")
    assert (params.tool_choice, params.response_format) == ("auto", request.response_format)
    assert ChatCompletionRequest(messages=[]).build_chat_params(None, "auto").tool_choice is None
    response = ResponsesRequest(input="x", tools=[TOOL], tool_choice="required")
    assert response.build_chat_params(None, "auto").tool_choice == "required"


def test_a_copy_of_a_request_with_other_values() -> None:
    pytest.importorskip("openai")
    tool = {"type": "function", "function": {"name": "f"}}
    request = ChatCompletionRequest(messages=HELLO, tools=[tool], temperature=0.5)
    request.skip_special_tokens = False
    copy = request.model_copy(update={"tool_choice": "required"})
    assert (copy.tool_choice, request.tool_choice) == ("required", "auto")
    assert (copy.skip_special_tokens, copy.temperature) == (False, 0.5)
    assert copy.tools[0].function.name == "f"
    assert copy.tools[0] is not request.tools[0]
    assert ChatCompletionRequest.of(request._body).model_copy().messages == request.messages
    response = ResponsesRequest(input="x", tools=[TOOL], tool_choice=NAMED)
    response.input = "y"
    assert response.model_copy().input == "y"
    assert response.model_copy().tool_choice.name == "f"
    with pytest.raises(VLLMValidationError, match="temperature"):
        request.model_copy(update={"temperature": -1})


def test_tools_may_be_a_type_of_pydantic() -> None:
    pytest.importorskip("openai")
    from pydantic import TypeAdapter, ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam

    kind = TypeAdapter(list[ChatCompletionToolsParam])
    [tool] = kind.validate_python([{"type": "function", "function": {"name": "f"}}])
    assert tool.function.name == "f"
    assert kind.validate_python([tool]) == [tool]
    with pytest.raises(ValidationError, match="name"):
        kind.validate_python([{"type": "function", "function": {}}])


def test_a_request_for_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "4")
    request = ChatCompletionRequest(messages=HELLO, n=4, use_beam_search=True, length_penalty=2.0)
    params = request.to_beam_search_params(8, {"temperature": 0.0})
    assert (params.beam_width, params.max_tokens, params.length_penalty) == (4, 8, 2.0)
    wider = CompletionRequest(prompt="x", n=5, use_beam_search=True)
    with pytest.raises(VLLMValidationError, match="beam_width must be at most 4"):
        wider.to_beam_search_params(8, {})
    with pytest.raises(VLLMValidationError, match="n must be at most 4"):
        CompletionRequest(prompt="x", n=5).to_sampling_params(8, {})


def test_minus_one_is_no_limit_of_the_reasoning() -> None:
    assert CompletionRequest(prompt="x", thinking_token_budget=-1).thinking_token_budget is None
    assert CompletionRequest(prompt="x", thinking_token_budget=5).thinking_token_budget == 5


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (CompletionRequest, {"prompt": "x", "top_p": "much"}, "top_p"),
        (CompletionRequest, {"prompt": "x", "top_p": 2}, "top_p"),
        (CompletionRequest, {"prompt": "x", "stop": object()}, "object"),
        (CompletionRequest, {"prompt_embeds": 5}, "prompt_embeds"),
        (CompletionRequest, {"prompt": "x", "thinking_token_budget": -2}, "thinking_token_budget"),
        (CompletionRequest, {"prompt": "x", "length_penalty": 2}, "length_penalty"),
        (
            CompletionRequest,
            {"prompt": "x", "logprobs": 1, "logprob_token_ids": [1], "use_beam_search": True},
            "not supported with beam search",
        ),
        (ChatCompletionRequest, {"messages": HELLO, "top_logprobs": 1}, "`logprobs` must be set"),
        (ChatCompletionRequest, {"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        (ChatCompletionRequest, {"messages": HELLO, "reasoning_effort": "very"}, "effort"),
        (BatchChatCompletionRequest, {"messages": HELLO}, "messages"),
        (ResponsesRequest, {"input": 3}, "input"),
        (ResponsesRequest, {"input": "x", "cache_salt": "a" * 129}, "cache_salt"),
        (ResponsesRequest, {"input": "x", "tool_choice": "required"}, "'required' must be"),
        (ResponsesRequest, {"input": "x", "tool_choice": NAMED}, "not found in 'tools'"),
        (ResponsesRequest, {"input": "x", "tools": [], "tool_choice": NAMED}, "not found in"),
        (
            ResponsesRequest,
            {"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": ""}},
            "not found in 'tools' parameter",
        ),
    ],
)
def test_mistakes_are_named(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        kind(**fields)


@pytest.mark.parametrize("body", ["text", ["a"], 42, None])
def test_a_body_is_an_object(body: object) -> None:
    with pytest.raises(VLLMValidationError, match="must be an object"):
        CompletionRequest.model_validate(body)
    with pytest.raises(VLLMValidationError, match="Invalid request body"):
        CompletionRequest.model_validate_json("{")


def test_fields_may_be_objects_of_a_client_library() -> None:
    pytest.importorskip("openai")
    from openai.types.shared import Reasoning

    request = ResponsesRequest(input="x", reasoning=Reasoning(effort="low"))
    assert request.reasoning.effort == "low"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "tool_calls": iter([call])}
    assert len(ChatCompletionRequest(messages=[*HELLO, said]).messages[1]["tool_calls"]) == 1
    with pytest.raises(VLLMValidationError, match="objects of type object"):
        ResponsesRequest(input="x", reasoning=object())


@pytest.mark.parametrize(
    ("own", "expected"), [(None, [7, 8]), ([], [7, 8]), ([5], [5, 7, 8]), ([8, 5], [8, 5, 7])]
)
def test_stop_tokens_are_added_to_those_by_default(
    own: list[int] | None, expected: list[int]
) -> None:
    defaults = {"stop_token_ids": [7, 8]}
    for request in (
        ChatCompletionRequest(messages=HELLO, stop_token_ids=own),
        CompletionRequest(prompt="x", stop_token_ids=own),
    ):
        params = request.to_sampling_params(4, defaults)
        assert params.stop_token_ids == expected


def test_a_request_of_a_parser_needs_no_messages() -> None:
    request = ChatCompletionRequest(messages=[], model="m")
    assert request.messages == []
    with pytest.raises(RequestError, match="messages"):
        ChatCompletionRequest(model="m")


def test_tools_fit_the_other_fields() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    named = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(RequestError, match="`tools` must be set"):
        ChatCompletionRequest(messages=HELLO, tool_choice="auto")
    with pytest.raises(RequestError, match="structured outputs or tools, not both"):
        ChatCompletionRequest(
            messages=HELLO, tools=[tool], tool_choice=named, structured_outputs={"regex": "a"}
        )
    assert ChatCompletionRequest(messages=HELLO, tools=[tool]).tool_choice == "auto"
    assert ChatCompletionRequest(messages=HELLO).tool_choice == "none"


def test_items_of_the_model_are_objects_of_the_client_library() -> None:
    openai = pytest.importorskip("openai.types.responses")
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    request = ResponsesRequest(model="m", input=iter([call, output, said]))
    assert isinstance(request.input[0], openai.ResponseFunctionToolCall)
    assert request.input[0].name == "f"
    assert request.input[1] == output
    assert isinstance(request.input[2], openai.ResponseOutputMessage)
    assert request.input[2].content[0].text == "a"
    own = request.input[0]
    assert ResponsesRequest(model="m", input=[own]).input[0] is own
    assert ResponsesRequest(model="m", input="a").input == "a"
