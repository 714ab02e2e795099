"""`/v1/responses/compact`, and its items in later requests."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from quire.chat.async_renderer import AsyncChatRenderer
from quire.chat.templates import ChatTemplates
from server.conftest import MakeHarness, MakeScripted

from .test_requests import ANSWER, CALL, OUTPUT, REASONING, messages_of

PATH = "/responses/compact"
SAID = "The user wants 42."
ITEMS = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}, CALL,
         OUTPUT, REASONING, ANSWER, {"role": "user", "content": "More"}]  # fmt: skip


def content(**fields: Any) -> str:
    return base64.b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


def compaction(summary: str = SAID) -> dict[str, Any]:
    return {"type": "compaction", "encrypted_content": content(summary=summary)}


def test_a_conversation_becomes_its_users_messages_and_a_summary(
    make_scripted: MakeScripted,
) -> None:
    harness = make_scripted(f"<think>Well.</think>{SAID}")
    body = {"model": "tiny", "input": ITEMS, "text": {"format": {"type": "text"}}}
    reply = harness.post(PATH, {**body, "image": {"context_compression": "auto"}})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["object"] == "response.compaction"
    assert set(found) == {"id", "object", "created_at", "output", "usage"}
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    *kept, last = found["output"]
    assert [(one["role"], one["content"][0]["text"]) for one in kept] == [
        ("developer", "Be brief."), ("user", "Hi"), ("user", "More"),
    ]  # fmt: skip
    assert last == {**compaction(), "id": last["id"]}
    assert last["id"].startswith("cmp_")
    assert "image" in reply.headers["x-quire-ignored-fields"]
    assert harness.request("GET", f"/v1/responses/{found['id']}").status_code == 404
    again = harness.post(PATH, {"model": None, "input": found["output"]}).json()
    assert len(again["output"]) == 4


def test_a_stored_conversation_is_compacted(make_scripted: MakeScripted) -> None:
    harness = make_scripted(SAID)
    first = harness.post("/v1/responses", {"input": "One"}).json()["id"]
    for more in ({}, {"input": []}, {"input": None}):
        body = {"model": "tiny", "previous_response_id": first, **more}
        output = harness.post(PATH, body).json()["output"]
        assert [one["type"] for one in output] == ["message", "compaction"]
    stored = harness.post("/v1/responses", {"input": output}).json()["id"]
    given = harness.request("GET", f"/v1/responses/{stored}/input_items").json()["data"]
    assert {one["type"]: one.get("encrypted_content") for one in given} == {
        "message": None, "compaction": compaction()["encrypted_content"],
    }  # fmt: skip
    next_one = {"input": "Two", "previous_response_id": stored}
    assert harness.post("/v1/responses", next_one).status_code == 200


@pytest.mark.parametrize("tool", [{"type": "function", "name": "f"}, {"type": "web_search"}])
def test_tools_are_not_called(make_scripted: MakeScripted, tool: dict[str, Any]) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    body = {"model": "tiny", "input": "a", "tools": [tool], "tool_choice": "auto"}
    output = make_scripted(call).post(PATH, body).json()["output"]
    assert output[-1]["encrypted_content"] == content(summary=call)


def test_the_model_is_shown_the_summary_as_its_own_text() -> None:
    user = {"role": "user", "content": "Hi"}
    shown = {"role": "assistant", "content": f"Summary of the conversation so far:\n\n{SAID}"}
    assert messages_of(user, compaction(), user) == [user, shown, user]
    parts = [{"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}]
    more = {"role": "user", "content": parts}
    found = messages_of(user, more, user, compaction(), more)
    assert [one["role"] for one in found] == ["user", "assistant", "user"]
    texts = [one if isinstance(one, str) else one["text"] for one in found[0]["content"]]
    assert texts == ["Hi", "A", "B", "Hi"]


ALTERNATING = """{% for message in messages %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}|{% endfor %}"""


def test_templates_whose_turns_alternate_work(make_scripted: MakeScripted) -> None:
    harness = make_scripted(SAID)
    roles = harness.model.engine.tokenizer.roles
    harness.model.chat = AsyncChatRenderer(ChatTemplates({"default": ALTERNATING}, roles))
    user = {"role": "user", "content": "Hi"}
    more = {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]}
    for items in ([user], [user, ANSWER], [user, ANSWER, more]):
        reply = harness.post(PATH, {"model": "tiny", "input": items})
        assert reply.status_code == 200, reply.text
        output = reply.json()["output"]
        asked = [one["content"][0]["text"] for one in output[:-1]]
        assert asked == ["Hi", "Go on."][: len(output) - 1]
        for path in ("/v1/responses", PATH):
            reply = harness.post(path, {"model": "tiny", "input": [*output, more]})
            assert reply.status_code == 200, reply.text
    harness.model.chat.close()


@pytest.mark.parametrize(
    "wrong",
    [
        None, "", "gAAAAABpM0Yj-_=", "%%", base64.b64encode(b"\xff\xfe").decode(), content(),
        content(summary=1), content(summary=["a"]), content(summary="a", role="system"),
    ],
)  # fmt: skip
def test_items_of_other_servers_are_refused(make_scripted: MakeScripted, wrong: str | None) -> None:
    item = {"type": "compaction", "encrypted_content": wrong}
    for path in ("/v1/responses", PATH):
        reply = make_scripted("x").post(path, {"model": "tiny", "input": [item]})
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == "input[0].encrypted_content"
        assert "/v1/responses/compact" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "model"), ({"model": "tiny"}, "input"), ({"model": "tiny", "input": []}, "input"),
        ({"model": "tiny", "input": "a", "stream": True}, "stream"),
        ({"model": "tiny", "input": "a", "background": True}, "background"),
        ({"model": "tiny", "input": "a", "max_output_tokens": 3}, "max_output_tokens"),
        ({"model": "tiny", "input": "a", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)  # fmt: skip
def test_what_cannot_be_compacted_is_refused(
    make_scripted: MakeScripted, fields: dict[str, Any], param: str
) -> None:
    reply = make_scripted(SAID).post(PATH, fields)
    assert reply.status_code in (400, 404), reply.text
    assert reply.json()["error"]["param"] == param


def test_an_empty_summary_replaces_nothing(make_scripted: MakeScripted) -> None:
    reply = make_scripted("<think>Hm.</think> \n").post(PATH, {"model": "tiny", "input": "a"})
    assert "wrote no summary" in reply.json()["error"]["message"]


def test_another_keys_conversation_is_not_compacted(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=("a", "b"))
    keys = [{"Authorization": f"Bearer {key}"} for key in "ab"]
    first = harness.post("/v1/responses", {"input": "x", "max_output_tokens": 1}, headers=keys[0])
    body = {"model": "tiny", "previous_response_id": first.json()["id"]}
    assert harness.post(PATH, body, headers=keys[1]).status_code == 404
