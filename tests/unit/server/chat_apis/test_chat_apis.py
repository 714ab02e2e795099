"""Every chat API: the same conversation gives the same prompt, and the same reply in its form."""

from __future__ import annotations

from typing import Any

import pytest

from .apis import APIS, Asked, OpenAiChat, Reply, Turn
from .conftest import Conversation, Talk

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9\\n", "b": [1]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
REPLIES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "": ("", "", ()),
    "Hi \u00e9\U0001f642!": ("", "Hi \u00e9\U0001f642!", ()),
    "<think>hm</think>So.": ("hm", "So.", ()),
    "<think>hm</think>" + CALL: ("hm", "", (("f", {"a": "\u00e9\n", "b": [1]}),)),
    f"I look.\n{CALL}\n{OTHER}": (
        "", "I look.", (("f", {"a": "\u00e9\n", "b": [1]}), ("g", {})),
    ),
    "<think>hm": ("hm", "", ()),
}  # fmt: skip
TOOLS = ("f", "g")
LONG = (
    Turn("user", "What is 6 x 7?"),
    Turn("assistant", "I ask.", reasoning="hm", calls=(("f", {"a": "\u00e9"}), ("g", {}))),
    Turn("tool", "42", answers=0),
    Turn("tool", "none", answers=1),
    Turn("assistant", "42"),
    Turn("user", "Sure?"),
)


def chat_of(conversation: Conversation) -> Conversation:
    """The same server through `/v1/chat/completions`."""
    return Conversation(OpenAiChat(), conversation.harness, conversation.received)


@pytest.mark.parametrize("text", REPLIES)
def test_a_reply_has_the_same_parts_whole_and_streamed(talk: Talk, text: str) -> None:
    conversation = talk(text)
    reply = conversation.same(Asked(tools=TOOLS))
    assert (reply.reasoning, reply.content, reply.calls) == REPLIES[text]
    assert reply.end == ("calls" if reply.calls else "stop")
    assert reply == chat_of(conversation).whole(Asked(tools=TOOLS))


@pytest.mark.parametrize("text", ["Long text", "<think>Long", CALL.partition("}")[0]])
def test_a_reply_that_is_cut_says_so(talk: Talk, text: str) -> None:
    limit = len(text.encode()) - 2
    reply = talk(text).streamed(Asked(tools=TOOLS, max_tokens=limit)) if text[0] != "<" else None
    whole = talk(text).whole(Asked(max_tokens=limit))
    assert whole.end == "length"
    assert whole.num_reply_tokens == limit
    assert reply is None or reply.end == "length"


def test_calls_are_text_without_tools(talk: Talk) -> None:
    reply = talk(f"I look.\n{CALL}").same(Asked())
    assert (reply.content, reply.calls, reply.end) == (f"I look.\n{CALL}", (), "stop")


@pytest.mark.parametrize("end", ["<tool_c", '"na', '"f', '"a": "', "}}\n</to"])
def test_a_call_that_is_cut_leaves_no_marks(talk: Talk, end: str) -> None:
    text = f"I look.\n{CALL}"
    limit = len(text[: text.index(end) + len(end)].encode())
    conversation = talk(text)
    reply = conversation.post(Asked(tools=TOOLS, max_tokens=limit)).text
    assert "I look." in reply
    assert "tool_call>" not in reply


@pytest.mark.parametrize("stop", ["two", "o t", " "])
def test_a_stop_string_ends_a_reply(talk: Talk, stop: str) -> None:
    reply = talk("one two three").same(Asked(stop=(stop, "four")))
    assert (reply.content, reply.end) == ("one two three".partition(stop)[0], "stop")


def test_no_tool_is_called_if_none_may_be(talk_with_choice: Talk) -> None:
    reply = talk_with_choice(CALL).same(Asked(tools=TOOLS, choice="none"))
    assert (reply.content, reply.calls) == (CALL, ())


def test_one_call_where_no_more_are_wanted(talk_with_choice: Talk) -> None:
    reply = talk_with_choice(CALL + OTHER).same(Asked(tools=TOOLS, is_parallel=False))
    assert [name for name, _ in reply.calls] == ["f"]


@pytest.mark.parametrize("choice", ["any", "f"])
def test_a_call_that_must_come_is_a_constraint(talk_with_choice: Talk, choice: str) -> None:
    asked = Asked(tools=TOOLS, choice=choice)
    conversation = talk_with_choice(CALL)
    assert [name for name, _ in conversation.whole(asked).calls] == ["f"]
    chat_of(conversation).whole(asked)
    own, chats = (one.sampling_params.structured_outputs for one in conversation.received)
    assert own == chats
    assert own is not None


@pytest.mark.parametrize("choice", ["any", "h"])
def test_a_choice_without_its_tool_is_refused(talk_with_choice: Talk, choice: str) -> None:
    conversation = talk_with_choice("x")
    asked = Asked(tools=TOOLS if choice == "h" else (), choice=choice)
    reply = conversation.post(asked)
    assert reply.status_code == 400
    assert "tool_choice" in conversation.api.error(reply.json())


@pytest.mark.parametrize(
    "asked",
    [
        Asked(),
        Asked(system="Be short."),
        Asked(turns=LONG, tools=TOOLS, system="\u00e9"),
        Asked(turns=(Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c"))),
    ],
)
def test_the_engine_gets_the_prompt_of_a_chat(talk: Talk, asked: Asked) -> None:
    conversation = talk("ok")
    conversation.whole(asked)
    chat_of(conversation).whole(asked)
    own, chats = conversation.received
    assert own.prompt_token_ids == chats.prompt_token_ids
    assert own.sampling_params.max_tokens == chats.sampling_params.max_tokens


def test_sampling_and_schema_are_those_of_a_chat(talk: Talk) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    asked = Asked(schema=schema, sampling={"temperature": 0.5, "top_p": 0.25}, max_tokens=7)
    conversation = talk('{"a": 1}')
    assert conversation.same(asked).content == '{"a": 1}'[:7]
    chat_of(conversation).whole(asked)
    own, _, chats = (one.sampling_params for one in conversation.received)
    assert (own.temperature, own.top_p, own.max_tokens) == (0.5, 0.25, 7)
    assert own.structured_outputs is not None
    assert own.structured_outputs == chats.structured_outputs


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -1.0, "temperature"),
        ("top_p", 7.0, "top_p"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_invalid_value_is_refused_by_the_apis_own_name(
    talk: Talk, name: str, value: Any, words: str, is_stream: bool
) -> None:
    conversation = talk("x")
    reply = conversation.post(Asked(sampling={name: value}), is_stream=is_stream)
    assert reply.status_code == 400
    assert words in conversation.api.error(reply.json())
    assert not conversation.received


def test_an_invalid_schema_is_refused_by_its_path(talk: Talk) -> None:
    conversation = talk("x")
    wrong = {"type": "object", "properties": {"a": {"type": "strange"}}}
    reply = conversation.post(Asked(schema=wrong))
    assert reply.status_code == 400
    assert conversation.api.error(reply.json()).startswith(f"{conversation.api.schema_path} ")


def test_an_unknown_field_is_named_in_a_header(talk: Talk) -> None:
    reply = talk("x").post(Asked(), new_field=1)
    assert reply.status_code == 200
    assert "new_field" in reply.headers["x-quire-ignored-fields"].split(", ")


def test_an_unknown_model_is_not_found(talk: Talk) -> None:
    conversation = talk("x")
    reply = conversation.post(Asked(), model="other")
    assert reply.status_code == 404
    assert "other" in conversation.api.error(reply.json())


def test_a_prompt_that_is_too_long_is_refused(talk: Talk) -> None:
    conversation = talk("x")
    reply = conversation.post(Asked(turns=(Turn("user", "x" * 600),)))
    assert reply.status_code == 400
    assert "512" in conversation.api.error(reply.json())


def test_tokens_are_counted_as_in_a_chat(talk: Talk) -> None:
    conversation = talk("<think>hm</think>So.")
    reply: Reply = conversation.same(Asked(turns=LONG))
    chat = chat_of(conversation).whole(Asked(turns=LONG))
    assert reply.num_prompt_tokens == chat.num_prompt_tokens > 0
    assert reply.num_reply_tokens == chat.num_reply_tokens == len("<think>hm</think>So.") + 1


def test_every_api_is_here() -> None:
    assert len({api.path for api in APIS}) == len(APIS) == 4
