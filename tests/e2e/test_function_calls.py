"""200 requests with tools to the demo model: one tool, several, several calls, none needed.

The form of calls is made sure of, so every call names an offered tool and its arguments validate,
whatever the model thinks. Which tool it calls is the model's own doing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jsonschema
import openai
import pytest
from sweeps import seed

import quire

from .conftest import StartServer

CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Madrid", "Vienna", "Athens", "Dublin")
MOST_TOKENS = 96


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """A tool; each property has a type, and all are required."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = {
    made["function"]["name"]: made
    for made in (
        tool("get_weather", "Get the current weather in a city", city="string"),
        tool("get_time", "Get the current time in a city", city="string"),
        tool("get_population", "Get the population of a city", city="string"),
        tool("set_timer", "Set a timer", minutes="integer"),
        tool("multiply", "Multiply two numbers", a="integer", b="integer"),
    )
}
ASKED = {
    "get_weather": "What is the weather in {city}?",
    "get_time": "What time is it in {city}?",
    "get_population": "How many people live in {city}?",
    "set_timer": "Set a timer for {n} minutes.",
    "multiply": "What is {n} times 7?",
}
PLAIN = ("Who are you?", "What is the capital of {}?", "Tell me a short story about a cat.")


class Case(NamedTuple):
    """A request, and the tool that serves it."""

    kind: str
    text: str
    tools: list[dict[str, Any]]
    right: str | None


def _cases() -> Iterator[Case]:
    for place, (name, text) in product(range(len(CITIES)), ASKED.items()):
        asked = text.format(city=CITIES[place], n=place + 3)
        yield Case("simple", asked, [TOOLS[name]], name)
        yield Case("multiple", asked, [TOOLS[name], TOOLS[_other(name, place)]], name)
    for place, name in product(range(len(CITIES)), ("get_weather", "get_time")):
        first, second = ASKED[name].format(city=CITIES[place]), CITIES[place - 1]
        yield Case("parallel", f"{first} And in {second}?", [TOOLS[name]], name)
    for place in range(len(CITIES)):
        for name in ("set_timer", "get_population"):
            for text in PLAIN[:2]:
                yield Case("irrelevance", text.format("France"), [TOOLS[name]], None)
        for name in ("set_timer", "multiply", "get_time", "get_weather"):
            yield Case("irrelevance", f"Say the opposite of hot, {place}.", [TOOLS[name]], None)


def _other(name: str, place: int) -> str:
    others = [one for one in TOOLS if one != name]
    return others[place % len(others)]


CASES = list(_cases())


@pytest.fixture
def client(start_server: StartServer) -> Iterator[openai.OpenAI]:
    model = Path(quire.__file__).parent / "demo_model"
    server = start_server(engine={"model": model, "dtype": "auto", "backend": "auto"})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def whole(client: openai.OpenAI, case: Case, **fields: Any) -> list[tuple[str, str]]:
    """The calls of a whole reply."""
    reply = client.chat.completions.create(**_body(case), **fields)
    calls = reply.choices[0].message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls]


def streamed(client: openai.OpenAI, case: Case, **fields: Any) -> list[tuple[str, str]]:
    """The calls of a streamed one, summed."""
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(**_body(case), **fields, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            if delta.index == len(calls):
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
    return [(name, arguments) for name, arguments in calls]


def _body(case: Case) -> dict[str, Any]:
    return {
        "model": "", "messages": [{"role": "user", "content": case.text}],
        "tools": case.tools, "temperature": 0, "max_tokens": MOST_TOKENS,
    }  # fmt: skip


def test_there_are_200_cases() -> None:
    assert len(CASES) == 200


def test_every_call_is_valid_and_most_are_right(client: openai.OpenAI) -> None:
    """A run takes some of the cases, `make proof` all of them."""
    wrong: list[str] = []
    chosen = CASES if (number := seed()) is None else Random(number).sample(CASES, 20)
    for case in chosen:
        calls = whole(client, case)
        assert streamed(client, case) == calls, case
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), TOOLS[name]["function"]["parameters"])
            assert TOOLS[name] in case.tools
        if {name for name, _ in calls} != ({case.right} if case.right else set()):
            wrong.append(f"{case.kind}: {case.text} -> {calls}")
    most = 0.05 if chosen is CASES else 0.12
    assert len(wrong) <= most * len(chosen), "\n".join(wrong)


def test_a_call_that_is_required_is_one_of_those_offered(client: openai.OpenAI) -> None:
    """Texts are bounded: where no tool serves the request, the model does not end a text itself."""
    for case in CASES[::13]:
        bounded = case._replace(tools=[_of_short_texts(tool) for tool in case.tools])
        [(name, arguments)] = whole(
            client, bounded, tool_choice="required", parallel_tool_calls=False, seed=1
        )
        assert name in {tool["function"]["name"] for tool in case.tools}
        jsonschema.validate(json.loads(arguments), TOOLS[name]["function"]["parameters"])


def _of_short_texts(tool: dict[str, Any]) -> dict[str, Any]:
    """The same tool, with texts of at most 30 characters."""
    made = copy.deepcopy(tool)
    for schema in made["function"]["parameters"]["properties"].values():
        if schema["type"] == "string":
            schema["maxLength"] = 30
    return made
