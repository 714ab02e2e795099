"""What is read of a request of `/v1/responses`: its messages, tools and fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.errors import RequestError
from quire.server.apis.responses.items_schema import Item
from quire.server.apis.responses.messages import input_items
from quire.server.apis.responses.open_items import custom_input
from quire.server.apis.responses.reading import read_response
from quire.server.apis.responses.schema import ResponsesRequest
from quire.server.apis.responses.tools import offered_tools, shown_tools
from quire.server.conversation.conversation import Conversation
from quire.server.requests.request import TextRequest

from .asking import function

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
REASONING = {"type": "reasoning", "summary": [], "content": [
    {"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
ANSWER = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [
    {"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]}  # fmt: skip


def asking(**fields: Any) -> ResponsesRequest:
    return msgspec.convert({"input": "x", **fields}, ResponsesRequest)


def read(**fields: Any) -> TextRequest[Conversation]:
    request = asking(**fields)
    offered = offered_tools(request.tools or [])
    return read_response(request, [], input_items(request.input), offered)


def chat_of(**fields: Any) -> Conversation:
    return read(**fields).prompt


def messages_of(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    """The chat's messages, without what they do not have."""
    messages = msgspec.to_builtins(chat_of(input=list(items), **fields).messages)
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in messages
    ]


def chats_call(call_id: str = "c1", name: str = "f", arguments: str = '{"a":1}') -> Any:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([USER], [USER]),
        ([{"type": "message", **USER}], [USER]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            [USER],
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]}],
            [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}],
        ),
        (
            [USER, REASONING, ANSWER, CALL, OUTPUT],
            [
                USER,
                {"role": "assistant", "reasoning": "hm", "content": "So.",
                 "tool_calls": [chats_call()]},
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
            ],
        ),
        (
            [USER, CALL, {**CALL, "call_id": "c2"}, OUTPUT, {**OUTPUT, "call_id": "c2"}, ANSWER],
            [
                USER,
                {"role": "assistant", "tool_calls": [chats_call(), chats_call("c2")]},
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
                {"role": "tool", "tool_call_id": "c2", "content": "42"},
                {"role": "assistant", "content": "So."},
            ],
        ),
        (
            [USER, REASONING, CALL],
            [USER, {"role": "assistant", "reasoning": "hm", "tool_calls": [chats_call()]}],
        ),
        (
            [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}],
            [USER, {"role": "assistant", "reasoning": "s"}],
        ),
        ([USER, {"type": "reasoning", "summary": [], "content": None}, ANSWER],
         [USER, {"role": "assistant", "content": "So."}]),
        ([USER, ANSWER, ANSWER], [USER, *[{"role": "assistant", "content": "So."}] * 2]),
        (
            [USER, {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": 'a"b'},
             {"type": "custom_tool_call_output", "call_id": "c1",
              "output": [{"type": "input_text", "text": "ok"}]}],
            [
                USER,
                {"role": "assistant",
                 "tool_calls": [chats_call(name="run", arguments='{"input":"a\\"b"}')]},
                {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            ],
        ),
        (
            [USER, {**CALL, "namespace": "ns"}],
            [USER, {"role": "assistant", "tool_calls": [chats_call(name="ns__f")]}],
        ),
    ],
)  # fmt: skip
def test_items_are_messages(items: list[Any], messages: list[Any]) -> None:
    assert messages_of(*items) == messages


def test_instructions_come_first_as_one_message() -> None:
    system = {"role": "system", "content": "B"}
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "C"}]}
    assert messages_of(USER, instructions="A") == [{"role": "system", "content": "A"}, USER]
    assert messages_of(system, developer, USER, system, instructions="A") == [
        {"role": "system", "content": "A\n\nB\n\nC"}, USER, system,
    ]  # fmt: skip
    assert messages_of(system, USER) == [system, USER]


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_a_message_that_is_not_complete_is_gone_on_with(status: str) -> None:
    chat = chat_of(input=[USER, {**ANSWER, "status": status}])
    assert (chat.add_generation_prompt, chat.continue_final_message) == (False, True)
    chat = chat_of(input=[USER, {**ANSWER, "status": status}, USER])
    assert (chat.add_generation_prompt, chat.continue_final_message) == (True, False)


TEXT = {"type": "input_text", "text": "a"}


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "system", "content": [TEXT, {"type": "new"}]}, "content[1].type"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"role": "user", "content": [TEXT, {"type": "input_text"}]}, "content[1].text"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "x"}]},
         "content[0].refusal"),
        (OUTPUT, "call_id"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ({"type": "function_call", "call_id": "c1"}, "name"),
        ({"type": "function_call_output", "call_id": "c0"}, "output"),
        ({"type": "function_call_output", "call_id": "c0", "output": [{"type": "new"}]},
         "output[0].type"),
        ({"type": "reasoning", "encrypted_content": "x"}, "encrypted_content"),
        ({"type": "reasoning", "summary": [{"type": "new"}]}, "summary[0].type"),
        ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, "content[0].text"),
        ({"type": "web_search_call", "id": "ws_1"}, "type"),
        ({"type": "computer_call_output", "call_id": "c1", "output": "x"}, "type"),
        ({}, "type"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_be_shown_is_refused_with_its_place(item: Any, place: str) -> None:
    begin = [{**USER, "role": "system"}, {**CALL, "call_id": "c0"}]
    for instructions in (None, "Be short."):
        with pytest.raises(RequestError) as caught:
            messages_of(*begin, item, instructions=instructions)
        assert caught.value.parameter == f"input[2].{place}"
        assert str(caught.value).startswith(f"input[2].{place}: ")
    request, history = asking(input=[item]), [Item(**one) for one in begin]
    with pytest.raises(RequestError) as caught:
        read_response(request, history, input_items(request.input), {})
    assert caught.value.parameter == f"input[0].{place}"


def test_images_are_parts_of_a_message() -> None:
    part = {"type": "input_image", "image_url": "data:x", "detail": "auto"}
    [message] = messages_of(
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}
    )
    parts = msgspec.to_builtins(message)["content"]
    assert parts == [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "data:x"}]


def test_sounds_are_parts_of_a_message() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    [message] = messages_of({"role": "user", "content": [part]})
    assert msgspec.to_builtins(message)["content"] == [part]


def test_no_items_are_refused() -> None:
    with pytest.raises(RequestError, match="must not be empty"):
        messages_of()


def test_fields_are_read_into_options() -> None:
    asked = read(
        instructions="A", max_output_tokens=7, reasoning={"effort": "low"}, truncation="auto",
        include=["message.output_text.logprobs"], top_logprobs=3, temperature=0.5, top_k=4,
        stop=["x"], seed=1, chat_template_kwargs={"a": 1}, cache_salt="s", priority=3,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    )  # fmt: skip
    chat = asked.prompt
    assert (asked.max_tokens, asked.salt, asked.priority) == (7, "s", 3)
    assert (chat.effort, chat.most_tokens, chat.variables) == ("low", -1, {"a": 1})
    assert (asked.reply.num_top, asked.sampling["logprobs"]) == (3, 3)
    expected = {"temperature": 0.5, "top_k": 4, "stop": ["x"], "seed": 1}
    assert {name: asked.sampling[name] for name in expected} == expected
    assert asked.constraint == {"json": {"type": "object"}}
    assert read(text={"format": {"type": "text"}}).constraint is None
    assert read(top_logprobs=3).reply.num_top is None


@pytest.mark.parametrize(
    ("choice", "mode", "only"),
    [
        (None, "auto", {"f", "run", "ns__g"}), ("auto", "auto", {"f", "run", "ns__g"}),
        ("none", "none", set()), ("required", "required", {"f", "run", "ns__g"}),
        ({"type": "function", "name": "f"}, "required", {"f"}),
        ({"type": "custom", "name": "run"}, "required", {"run"}),
        ({"type": "function", "name": "g"}, "required", {"ns__g"}),
        ({"type": "function", "name": "ns__g"}, "required", {"ns__g"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}]}, "required",
         {"f"}),
    ],
)  # fmt: skip
def test_tools_are_functions(choice: Any, mode: str, only: set[str]) -> None:
    tools = [
        function("f", description="d", strict=True), {"type": "custom", "name": "run"},
        {"type": "namespace", "name": "ns", "tools": [function("g")]},
    ]  # fmt: skip
    chat = chat_of(tools=tools, tool_choice=choice)
    assert chat.tools is not None
    assert [tool.function.name for tool in chat.tools] == ["f", "run", "ns__g"]
    assert (chat.tools[0].function.strict, chat.tools[0].function.description) == (True, "d")
    assert chat.tools[1].function.parameters is not None
    assert chat.tools[1].function.parameters["required"] == ["input"]
    assert (chat.tool_use.rules.choice, chat.tool_use.rules.only) == (mode, only)


GRAMMAR = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark"}}
LEFT_OUT: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("web_search", "image_generation", "local_shell", "mcp", "new")),
    GRAMMAR,
]


def test_tools_that_are_not_run_here_are_left_out() -> None:
    namespace = {"type": "namespace", "name": "ns", "tools": [function("g"), GRAMMAR]}
    only = {"type": "namespace", "name": "other", "tools": [{"type": "web_search"}]}
    request = asking(tools=[*LEFT_OUT, function("f"), namespace, only])
    shown, names = shown_tools(msgspec.structs.replace(request, tool_choice="auto"))
    assert list(offered_tools(shown or [])) == ["f", "ns__g"]
    kinds = ["web_search", "image_generation", "local_shell", "mcp", "new", "patch"]
    assert names == [f"tools.{kind}" for kind in [*kinds, "patch", "web_search"]]
    assert shown_tools(asking(tools=LEFT_OUT))[0] is None
    assert shown_tools(asking(tools=[])) == (None, [])


@pytest.mark.parametrize(
    "choice",
    [
        *LEFT_OUT[:1], {"type": "custom", "name": "patch"},
        {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}, LEFT_OUT[1]]},
    ],
)  # fmt: skip
def test_a_choice_of_a_tool_that_is_left_out_is_refused(choice: Any) -> None:
    request = asking(tools=[*LEFT_OUT, function("f")])
    with pytest.raises(RequestError, match="left out") as caught:
        shown_tools(msgspec.structs.replace(request, tool_choice=choice))
    assert caught.value.parameter == "tool_choice"
    with pytest.raises(RequestError, match="none can be required"):
        shown_tools(asking(tools=LEFT_OUT, tool_choice="required"))


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function"},
        {"type": "namespace", "name": "x"},
        {"type": "namespace", "name": "x", "tools": [{"type": "namespace", "name": "y"}]},
    ],
)  # fmt: skip
def test_tools_that_are_incomplete_are_refused(tool: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of(tools=[tool])
    assert caught.value.parameter == "tools"
    with pytest.raises(RequestError):
        chat_of(tools=[function("f"), function("f")])


@pytest.mark.parametrize(
    "choice",
    ["other", {"type": "function", "name": "g"}, {"type": "file_search"}, {},
     {"type": "allowed_tools", "tools": []}, {"type": "allowed_tools", "tools": ["f"]}],
)  # fmt: skip
def test_choices_that_do_not_work_are_refused(choice: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of(tools=[function("f")], tool_choice=choice)
    assert caught.value.parameter == "tool_choice"


def test_a_choice_without_tools() -> None:
    assert not chat_of(tool_choice="auto").tool_use.is_searched
    with pytest.raises(RequestError):
        chat_of(tool_choice="required")


def test_the_text_of_a_custom_tool() -> None:
    assert custom_input('{"input": "a\\n"}') == "a\n"
    assert custom_input("just text") == "just text"
    assert custom_input('{"x": 1}') == '{"x": 1}'


def test_the_text_of_a_custom_tool_that_was_cut() -> None:
    arguments = '{"input": "a\\n\\u00e9"}'
    texts = [custom_input(arguments[:length]) for length in range(1, len(arguments) + 1)]
    assert texts[:13] == [*[""] * 11, "a", "a"]
    assert texts[-9:] == [*["a\n"] * 6, "a\n\u00e9", "a\n\u00e9", "a\n\u00e9"]
