"""The Responses API of the `openai` package for Python against a real server."""

from __future__ import annotations

import json
import time

import openai
import pytest
from pydantic import BaseModel

from .conftest import StartServer

WEATHER = {
    "type": "function", "name": "get_weather", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip
OPTIONS = {"model": "tiny", "max_output_tokens": 12, "temperature": 0}


class Choice(BaseModel):
    yes: bool


def test_a_response_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(**OPTIONS, input="Hi", instructions="Be short.")
    chat = client.chat.completions.create(
        model="tiny", max_tokens=12, temperature=0,
        messages=[{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
    )  # fmt: skip
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage is not None
    assert chat.usage is not None
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    events = [
        *client.responses.create(**OPTIONS, input="Hi", instructions="Be short.", stream=True)
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert text == final.output_text == whole.output_text
    assert (final.status, final.usage.output_tokens) == ("incomplete", 12)


def test_a_tool_is_called_and_its_output_given_back(start_server: StartServer) -> None:
    server = start_server({"reasoning_parser": "none"}, tool_call_parser="hermes")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        _check_tools(client)


def _check_tools(client: openai.OpenAI) -> None:
    options = {**OPTIONS, "max_output_tokens": 120, "tools": [WEATHER], "temperature": 1.0}
    options["extra_body"] = {"seed": 1}
    choice = {"type": "function", "name": "get_weather"}
    first = client.responses.create(**options, input="Weather?", tool_choice=choice)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    chained = client.responses.create(**options, input=[output], previous_response_id=first.id)
    user = {"role": "user", "content": "Weather?"}
    itself = client.responses.create(**options, input=[user, *first.output, output], store=False)
    assert chained.usage.input_tokens == itself.usage.input_tokens
    assert [one.type for one in chained.output] == [one.type for one in itself.output]
    listed = client.responses.input_items.list(chained.id, order="asc", limit=1)
    kinds = [item.type for item in listed]  # page by page
    assert kinds[0] == "message"
    assert kinds[-2:] == ["function_call", "function_call_output"]


def test_an_answer_is_parsed(client: openai.OpenAI) -> None:
    options = {**OPTIONS, "max_output_tokens": 300, "top_p": 0.1}
    parsed = client.responses.parse(**options, input="Yes?", text_format=Choice).output_parsed
    assert isinstance(parsed, Choice)


def test_responses_in_the_background(client: openai.OpenAI) -> None:
    response = client.responses.create(**OPTIONS, input="Hi", background=True)
    while response.status in ("queued", "in_progress"):
        time.sleep(0.02)
        response = client.responses.retrieve(response.id)
    assert response.output_text == client.responses.create(**OPTIONS, input="Hi").output_text
    events = []
    with client.responses.create(**OPTIONS, input="Hi", background=True, stream=True) as stream:
        for event in stream:
            events.append(event)
            if len(events) == 5:
                break
    first = events[0]
    assert first.type == "response.created"
    events += client.responses.retrieve(first.response.id, stream=True, starting_after=4)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    long = {**OPTIONS, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
    running = client.responses.create(**long, input="Hi", background=True)
    assert client.responses.cancel(running.id).status == "cancelled"
    client.responses.delete(running.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)


def test_errors_are_the_clients(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**OPTIONS, input="Hi", tools=[{"type": "function"}])
    assert caught.value.param == "tools"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(**OPTIONS, input="Hi", previous_response_id="resp_x")
    assert missing.value.param == "previous_response_id"
