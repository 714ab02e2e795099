"""What is read of requests of `/v1/messages`: the conversation, the options, and the refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.errors import RequestError
from quire.server.apis.messages.reading import read_message, read_prompt
from quire.server.apis.messages.schema import MessagesRequest
from quire.server.conversation.conversation import Conversation
from quire.server.requests.request import TextRequest

from .conftest import MakeScripted
from .messages_client import BODY, COUNT, PATH, TOOLS

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é", "b": [1.5, None]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def read(*, merges_system: bool = False, **fields: Any) -> TextRequest[Conversation]:
    asked = msgspec.convert({**BODY, **fields}, MessagesRequest)
    return read_message(asked, 100_000, merges_system=merges_system, holds_budget=True)


def converted(**fields: Any) -> Conversation:
    return read(**fields).prompt


def messages(*turns: Any, **fields: Any) -> list[Any]:
    """The messages of a chat, without fields that say nothing. A turn is a role and its content."""
    asked = [{"role": role, "content": content} for role, content in turns]
    plain = msgspec.to_builtins(converted(messages=asked, **fields).messages)
    return [{name: value for name, value in one.items() if value is not None} for one in plain]


def refusal(*turns: Any, **fields: Any) -> str:
    asked = [{"role": role, "content": content} for role, content in turns] or BODY["messages"]
    with pytest.raises(RequestError) as caught:
        converted(messages=asked, **fields)
    assert caught.value.parameter
    assert caught.value.parameter in str(caught.value) or "messages[" in str(caught.value)
    return str(caught.value)


def test_a_conversation_of_texts() -> None:
    assert messages(
        ("user", "a"), ("assistant", [text("b"), text("c")]), ("user", [text("d"), text("e")])
    ) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bc"},
        {"role": "user", "content": [text("d"), text("e")]},
    ]  # fmt: skip


def test_turns_of_one_role_are_one() -> None:
    assert messages(("user", "a"), ("user", [text("b")]), ("assistant", "c"), ("assistant", "d"),
                    ("user", "e")) == [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"},
    ]  # fmt: skip


def test_a_call_and_its_result() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "AAAA"}
    found = messages(
        ("user", "q"),
        ("assistant", [thinking, hidden, text("I look."), CALL]),
        ("user", [RESULT, text("go on")]),
    )
    function = {"name": "f", "arguments": '{"a": "é", "b": [1.5, null]}'}
    assert found[1:] == [
        {
            "role": "assistant", "content": "I look.", "reasoning": "hm",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "toolu_1", "name": "f"},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ""), ("", ""), ("a", "a"), ([], ""), ([text("a"), text(""), text("b")], "a\nb"),
        ([{"type": "tool_reference", "tool_name": "f"}], "f"),
    ],
)  # fmt: skip
def test_results_in_all_their_forms(content: Any, words: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": True}
    found = messages(("user", "q"), ("assistant", [CALL]), ("user", [result]))
    assert found[1].keys() == {"role", "tool_calls"}
    assert found[2:] == [{"role": "tool", "content": words, "tool_call_id": "toolu_1", "name": "f"}]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"},
          "title": "T", "context": "C"}, "T\n\nC\n\na"),
        ({"type": "document", "source": {"type": "content", "content": "a"}}, "a"),
        ({"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]},
          "citations": {"enabled": False}}, "a\n\nb"),
        ({"type": "search_result", "source": "http://x", "title": "T", "content": [text("a")]},
         "T\n\nhttp://x\n\na"),
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, "a"),
    ],
)  # fmt: skip
def test_blocks_that_are_texts(block: Any, words: str) -> None:
    assert messages(("user", [block])) == [{"role": "user", "content": words}]


def test_images_keep_their_places_and_those_of_tools_come_after_the_results() -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/gif", "data": "A"},
    }
    linked = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("r"), linked]}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    found = messages(("user", [text("a"), picture, text("b")]), ("assistant", [call]),
                     ("user", [result, text("c")]))  # fmt: skip
    assert found[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": "data:image/gif;base64,A"},
        {"type": "text", "text": "b"},
    ]
    assert found[2]["content"] == "r"
    assert found[3]["content"] == [
        {"type": "image_url", "image_url": "http://x"}, {"type": "text", "text": "c"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "image", "source": {"type": "base64"}}, "base64 with data"),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                         "data": "AAAA"}}, "application/pdf"),
        ({"type": "document", "source": {"type": "url", "url": "http://x"}}, "url"),
        ({"type": "document"}, "source"),
        ({"type": "document", "source": {"type": "text", "data": "a"},
          "citations": {"enabled": True}}, "citations"),
        ({"type": "text"}, "needs text"),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {}}, "tool_use"),
        ({"type": "thinking", "thinking": "a"}, "thinking"),
        ({"type": "tool_result", "content": "a"}, "tool_use_id"),
        ({"type": "tool_result", "tool_use_id": "a",
          "content": [{"type": "image", "source": {"type": "url"}}]}, "or url"),
        ({"type": "container_upload"}, "container_upload"),
        ({"type": "document", "source": {"type": "content", "content": [
            {"type": "document", "source": {"type": "content", "content": "a"}}]}}, "'document'"),
    ],
)  # fmt: skip
def test_blocks_that_do_not_work_are_named(block: Any, words: str) -> None:
    message = refusal(("user", "a"), ("assistant", "b"), ("user", [text("c"), block]))
    assert "messages[2].content[1]" in message
    assert words in message


@pytest.mark.parametrize(
    "block",
    [{"type": "image"}, {"type": "tool_result", "tool_use_id": "a"}, {"type": "server_tool_use"},
     {"type": "tool_use", "name": "f"}, {"type": "tool_use", "id": "a"}, {"type": "text"}],
)  # fmt: skip
def test_blocks_that_an_assistant_does_not_have_are_named(block: Any) -> None:
    message = refusal(("user", "a"), ("assistant", [block]), ("user", "b"))
    assert "messages[1].content[0]" in message


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=0123;"


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("a", ["a"]), ([text("a"), text("b")], ["ab"]), ([], []), ("", []), (None, []),
        ([text(HEADER), text("a")], ["a"]), (f"{HEADER}\na", ["a"]), (HEADER, []),
    ],
)  # fmt: skip
def test_the_system_prompt_without_the_billing_header(system: Any, words: list[str]) -> None:
    found = messages(("user", "q"), system=system)
    assert found == [
        *({"role": "system", "content": each} for each in words),
        {"role": "user", "content": "q"},
    ]


def test_instructions_between_turns_stay_there_or_come_first() -> None:
    turns = (
        ("user", "a"), ("system", "x"), ("assistant", "b"), ("user", "c"),
        ("system", [text(HEADER)]), ("system", [text("y")]),
    )  # fmt: skip
    roles = [one["role"] for one in messages(*turns, system="s")]
    assert roles == ["system", "user", "system", "assistant", "user", "system"]
    merged = messages(*turns, system="s", merges_system=True)
    assert merged[0] == {"role": "system", "content": "s\n\nx\n\ny"}
    assert [one["role"] for one in merged[1:]] == ["user", "assistant", "user"]


def test_a_reply_goes_on_with_what_the_assistant_said_last() -> None:
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is"}]
    request = converted(messages=asked)
    assert request.continue_final_message is True
    assert request.add_generation_prompt is False
    assert converted().continue_final_message is False
    assert "calls of tools" in refusal(("user", "a"), ("assistant", [CALL]))


def test_tools() -> None:
    tools = [
        {"name": "f", "input_schema": {"properties": {"a": {}}}, "strict": True,
         "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "g", "description": "d", "input_schema": {"type": "object"}},
    ]  # fmt: skip
    f, g = [tool.function for tool in converted(tools=tools).tools or ()]
    assert (f.name, f.parameters, f.strict) == (
        "f", {"type": "object", "properties": {"a": {}}}, True
    )  # fmt: skip
    assert (g.name, g.description, g.parameters) == ("g", "d", {"type": "object"})
    assert g.strict is None
    use = converted(tools=tools).tool_use
    assert [tool.strict for tool in use.rules.tools] == [True, False]
    assert converted(tools=[]).tools is None


def test_a_schema_keeps_the_order_of_its_keys_which_the_model_reads() -> None:
    schema = {"additionalProperties": False, "properties": {"a": {}}, "type": "object"}
    [tool] = converted(tools=[{"name": "f", "input_schema": schema}]).tools or ()
    assert list((tool.function.parameters or {}).items()) == list(schema.items())


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"name": "f"}, "input_schema"),
        ({"name": "", "input_schema": {}}, "name"),
    ],
)
def test_tools_that_do_not_work_are_named(tool: Any, words: str) -> None:
    message = refusal(tools=[TOOLS[0], tool])
    assert "tools[1]" in message
    assert words in message


def test_tools_that_only_the_vendors_models_know_are_left_out() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    toolset = {"type": "mcp_toolset"}
    request = converted(tools=[search, TOOLS[0], toolset])
    assert [tool.function.name for tool in request.tools or ()] == [TOOLS[0]["name"]]
    assert converted(tools=[search]).tools is None
    assert "web_search_20250305" in refusal(
        tools=[search, TOOLS[0]], tool_choice={"type": "tool", "name": "web_search"}
    )


@pytest.mark.parametrize(
    ("choice", "mode", "is_parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": TOOLS[0]["name"]}, "required", False),
    ],
)
def test_choices_of_tools(choice: Any, mode: str, is_parallel: bool) -> None:
    chat = converted(tools=TOOLS, tool_choice=choice)
    rules = chat.tool_use.rules
    assert (rules.choice, rules.is_parallel) == (mode, is_parallel)
    assert chat.forbids_calls is (mode == "none")
    assert chat.tool_use.is_named is ("name" in (choice or {}))


def test_an_error_names_a_tool_where_the_body_has_it() -> None:
    """Tools that are left out are not counted in the conversation, but they are in the body."""
    twice = [{"type": "web_search_20250305", "name": "web_search"}, TOOLS[0], TOOLS[0]]
    with pytest.raises(RequestError) as caught:
        read(tools=twice)
    assert caught.value.parameter == "tools[2].name"
    assert str(caught.value).startswith("tools[2].name ")


def test_a_choice_of_no_tool_is_refused() -> None:
    assert "name" in refusal(tools=TOOLS, tool_choice={"type": "tool"})


def test_fields_of_sampling_and_of_vllm() -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": True, "metadata": {"user_id": "x"},
        "cache_salt": "s", "vllm_xargs": {"a": 1}, "chat_template_kwargs": {"x": 1},
    }  # fmt: skip
    asked = read(**given, stop_sequences=["a"], service_tier="auto")
    assert asked.sampling == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["a"], "extra_args": {"a": 1},
    }  # fmt: skip
    assert (asked.reply.stream, asked.salt, asked.max_tokens) == (True, "s", 400)
    assert asked.prompt.variables == {"x": 1}
    assert read(max_tokens=2**40).max_tokens == 100_000


@pytest.mark.parametrize(
    ("fields", "effort", "variables"),
    [
        ({}, None, None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"thinking": {"type": "disabled"}}, "none", None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "none", None),
        ({"output_config": {"effort": "xhigh"}}, "xhigh", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, None,
         {"enable_thinking": True}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000,
          "chat_template_kwargs": {"enable_thinking": False}}, None, {"enable_thinking": False}),
    ],
)  # fmt: skip
def test_thinking(fields: Any, effort: Any, variables: Any) -> None:
    asked = read(**fields)
    assert asked.prompt.effort == effort
    assert asked.prompt.variables == variables
    thinking = fields.get("thinking", {})
    assert asked.sampling.get("thinking_token_budget") == thinking.get("budget_tokens")


@pytest.mark.parametrize("budget", [None, -1, 0, 1023, 1500, 2**62])
def test_a_thinking_budget_that_cannot_be_is_refused(budget: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    assert "at least 1024" in refusal(thinking=thinking, max_tokens=1500)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_format_of_the_answer(place: str) -> None:
    wanted: Any = {"type": "json_schema", "schema": {"type": "object"}}
    asked = read(**{place: wanted if place == "output_format" else {"format": wanted}})
    assert asked.constraint == {"json": {"type": "object"}}
    assert "schema" in refusal(output_format={"type": "json_schema"})


@pytest.mark.parametrize("field", ["mcp_servers", "container"])
def test_what_the_vendor_runs_is_refused(field: str) -> None:
    assert refusal(**{field: [{"type": "url", "url": "http://x"}]}).startswith(field)


def test_clients_that_keep_a_thread_are_told_to_do_without(make_scripted: MakeScripted) -> None:
    """The tool runner of the `anthropic` package asks again with the whole conversation, if the
    error has these details; a field that is only ignored would lose it."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "q"}], "max_tokens": 2}
    harness = make_scripted("x")
    for path in (PATH, COUNT):
        asked = {name: body[name] for name in body if path == PATH or name != "max_tokens"}
        reply = harness.post(path, {**asked, "thread": {"type": "create"}})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["message"].startswith("thread: this server keeps no conversations")
        assert error["details"]["error_code"] == "thread_unsupported_request"
    assert "details" not in harness.post(PATH, {**body, "container": "x"}).json()["error"]


def test_the_prompt_is_that_of_the_same_chat(make_scripted: MakeScripted) -> None:
    """Counted here, and as `/tokenize` and `/v1/messages` count it."""
    harness = make_scripted("x")
    turns = [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": [text("a"), CALL]},
        {"role": "user", "content": [RESULT, text("go")]},
    ]  # fmt: skip
    body = {"model": "tiny", "messages": turns, "system": "s", "tools": TOOLS}
    counted = harness.post(COUNT, body).json()
    asked = msgspec.convert({**body, "max_tokens": 1}, MessagesRequest)
    chat = read_prompt(asked, merges_system=False).prompt
    plain = {name: msgspec.to_builtins(getattr(chat, name)) for name in ("messages", "tools")}
    tokenized = harness.post("/tokenize", plain).json()
    assert counted["input_tokens"] == tokenized["count"]
    assert counted["context_management"] == {"original_input_tokens": tokenized["count"]}
    usage = harness.post(PATH, {**body, "max_tokens": 2}).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == tokenized["count"]
