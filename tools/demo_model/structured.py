"""Items with structured answers: JSON from a sentence, tool calls and the use of one tool reply."""

import json
from random import Random
from typing import Any

from tools.demo_model.example import Item, Message
from tools.demo_model.facts import CITIES, NUMBER_WORDS, WEEKDAYS
from tools.demo_model.tool_turns import (
    THOUGHT_OF_ANSWER,
    Call,
    call_turn,
    choose_tool,
    offered,
    result_turn,
    some_result,
    thought_of_calls,
)
from tools.demo_model.words import COLORS, NOUNS, some_name

_JSON_PHRASES = (
    "Turn this sentence into JSON: {s}", "Write this as JSON: {s}", "{s} Give me that as JSON.",
    "Extract the data as JSON: {s}", "Convert to JSON: {s}", "Answer in JSON. {s}",
)  # fmt: skip


def _person(rng: Random) -> tuple[str, dict[str, Any]]:
    name, age, city = some_name(rng), rng.randint(5, 99), rng.choice(CITIES).removesuffix(".")
    sentence = rng.choice((
        "{n} is {a} years old and lives in {c}.", "{n} lives in {c} and is {a} years old.",
        "My friend {n}, who is {a}, lives in {c}.", "In {c} lives {n}, aged {a}.",
    ))  # fmt: skip
    return sentence.format(n=name, a=age, c=city), {"name": name, "age": age, "city": city}


def _order(rng: Random) -> tuple[str, dict[str, Any]]:
    item, count, price = rng.choice(NOUNS), rng.randint(1, 20), rng.randint(1, 500)
    shown = NUMBER_WORDS[count] if rng.random() < 0.3 else str(count)
    sentence = rng.choice((
        "I want to buy {q} of item {i} for {p} dollars.", "Order: {i}, {q} pieces, {p} dollars.",
        "We sold {q} pieces of {i} at {p} dollars.", "The price of {q} {i} is {p} dollars.",
    ))  # fmt: skip
    data = {"item": item, "quantity": count, "price": price}
    return sentence.format(i=item, q=shown, p=price), data


def _event(rng: Random) -> tuple[str, dict[str, Any]]:
    name, day, hour = some_name(rng), rng.choice(WEEKDAYS), rng.randint(1, 12)
    sentence = rng.choice((
        "I meet {n} on {d} at {h}.", "On {d} at {h} I have a meeting with {n}.",
        "{n} will come on {d} at {h}.", "The meeting with {n} is at {h} on {d}.",
    ))  # fmt: skip
    return sentence.format(n=name, d=day, h=hour), {"person": name, "day": day, "hour": hour}


def _thing(rng: Random) -> tuple[str, dict[str, Any]]:
    noun, color, size = rng.choice(NOUNS), rng.choice(COLORS), rng.choice(("small", "big"))
    sentence = rng.choice((
        "The {n} is {s} and {c}.", "I have a {s} {c} {n}.", "There is a {s} {n}, and it is {c}.",
    ))  # fmt: skip
    data = {"object": noun, "color": color, "size": size}
    return sentence.format(n=noun, c=color, s=size), data


def json_item(rng: Random) -> Item:
    """A sentence to be turned into a JSON object."""
    sentence, data = rng.choice((_person, _person, _order, _event, _thing))(rng)
    prompt = rng.choice(_JSON_PHRASES).format(s=sentence)
    fields = ", ".join(data)
    return Item(
        "JSON", f"json:{sorted(map(str, data.values()))}", prompt, json.dumps(data),
        thought=f"The fields are {fields}.",
    )  # fmt: skip


def call_key(call: Call) -> str:
    """The key of a request for this call alone."""
    return f"call:{sorted(map(str, call.values.values()))}"


def tool_call_item(rng: Random) -> Item:
    """A request that one of the tools given can serve."""
    tool = choose_tool(rng)
    call = Call(tool, tool.values(rng))
    request = rng.choice(tool.requests).format(**call.values)
    return Item(
        "tool calls", call_key(call), request, call.text,
        thought=thought_of_calls([call]), tools=offered(rng, [tool]),
    )  # fmt: skip


def tool_reply_item(rng: Random) -> Item:
    """The turn after a tool has answered: its reply put into a sentence."""
    tool = choose_tool(rng, invented=0.2)
    call, result = Call(tool, tool.values(rng)), some_result(rng, tool)
    request = rng.choice(tool.requests).format(**call.values)
    history: tuple[Message, ...] = (
        {"role": "user", "content": request},
        call_turn([call]),
        result_turn(rng, tool, result),
    )
    return Item(
        "tool replies", f"reply:{call.key}:{result}", "", call.says(result),
        thought=THOUGHT_OF_ANSWER, history=history, tools=offered(rng, [tool]),
    )  # fmt: skip


def unneeded_tool_item(rng: Random, plain: Item) -> Item:
    """A plain question while tools are on offer that do not serve it: answered without a call."""
    tools = offered(rng, [choose_tool(rng)])
    names = {tool["function"]["name"] for tool in tools}
    if ("add" in names and " + " in plain.answer) or names & set(plain.would_call):
        return unneeded_tool_item(rng, plain)
    return Item(
        "tools not needed",
        f"unneeded:{plain.key}",
        plain.prompt,
        plain.answer,
        thought="No tool is needed. " + plain.thought,
        tools=tools,
    )
