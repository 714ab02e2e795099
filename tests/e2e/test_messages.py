"""`/v1/messages` on a real server, over plain HTTP and with the `anthropic` package for Python."""

from __future__ import annotations

from typing import Any

import httpx

from .conftest import RunningServer
from .test_other_clients import python_with, run

PATH = "/v1/messages"
BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "What is a quire?"}],
    "max_tokens": 24, "temperature": 0,
}  # fmt: skip

SCRIPT = """
import json, os
import anthropic
client = anthropic.Anthropic(
    base_url=os.environ["BASE_URL"].removesuffix("/v1"), api_key="unused", max_retries=0
)
messages = [{"role": "user", "content": os.environ["QUESTION"]}]
options = dict(model="tiny", messages=messages, max_tokens=24, extra_body={"temperature": 0})
whole = client.messages.create(**options)
with client.messages.stream(**options) as stream:
    text = "".join(stream.text_stream)
    last = stream.get_final_message()
count = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
def error_of(**fields):
    try:
        client.messages.create(**{**options, **fields})
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.body["error"]["type"], error.request_id is not None]
def shape(message):
    return {"blocks": [block.model_dump(exclude_none=True) for block in message.content],
            "reason": message.stop_reason, "output_tokens": message.usage.output_tokens}
print(json.dumps({
    "whole": shape(whole), "stream": shape(last), "text": text, "count": count,
    "input": whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
    "model_error": error_of(model="other"), "field_error": error_of(max_tokens=0),
}))
"""


def test_the_anthropic_package(server: RunningServer) -> None:
    found = run([python_with("anthropic"), "-W", "ignore", "-c", SCRIPT], server)
    with server.client() as client:
        plain = client.post(PATH, json=BODY).raise_for_status().json()
    assert found["whole"] == found["stream"]
    assert found["whole"]["blocks"] == plain["content"]
    assert found["text"] == "".join(block["text"] for block in plain["content"])
    assert found["count"] == found["input"]
    assert found["model_error"] == ["NotFoundError", "not_found_error", True]
    assert found["field_error"] == ["BadRequestError", "invalid_request_error", True]


def test_a_message_says_what_the_same_chat_says(server: RunningServer) -> None:
    with server.client() as client:
        message = client.post(PATH, json=BODY).raise_for_status().json()
        chat = client.post("/v1/chat/completions", json=BODY).raise_for_status().json()
    text = "".join(block.get("text", "") for block in message["content"])
    assert text == (chat["choices"][0]["message"]["content"] or "")
    assert message["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]


def test_streams_that_nobody_reads_end_at_once(server: RunningServer) -> None:
    """After the first event, in the middle, and before the reply to a request that is whole."""
    body = {**BODY, "max_tokens": 400, "stream": True}
    with server.client() as client:
        for num_lines in (1, 2, 30):
            with client.stream("POST", PATH, json=body) as reply:
                lines = reply.iter_lines()
                for _ in range(num_lines):
                    next(lines)
        for timeout in (0.001, 0.05):
            try:
                client.post(PATH, json={**body, "stream": False}, timeout=timeout)
            except httpx.TimeoutException:
                continue
    server.until_idle()
    with server.client() as client:
        assert client.post(PATH, json=BODY).status_code == 200
