"""Items with structured answers: JSON from a sentence, tool calls and the use of tool replies."""

import json
from random import Random
from typing import Any

from tools.demo_model.example import Item, Message, render_tool_call
from tools.demo_model.facts import CITIES, NUMBER_WORDS, WEEKDAYS
from tools.demo_model.tools_catalog import Tool, all_tools, invented_tool
from tools.demo_model.words import ADJECTIVES, COLORS, NOUNS, some_name

_JSON_PHRASES = (
    "Turn this sentence into JSON: {s}", "Write this as JSON: {s}", "{s} Give me that as JSON.",
    "Extract the data as JSON: {s}", "Convert to JSON: {s}", "Answer in JSON. {s}",
)  # fmt: skip
_REPLIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


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


def _offered(rng: Random, tool: Tool) -> tuple[Message, ...]:
    others = [other for other in all_tools() if other.name != tool.name]
    offered = [tool, *rng.sample(others, rng.choice((0, 0, 1, 1, 2)))]
    rng.shuffle(offered)
    return tuple(one.schema(rng) for one in offered)


def _choose(rng: Random) -> Tool:
    return invented_tool(rng) if rng.random() < 0.25 else rng.choice(all_tools())


def tool_call_item(rng: Random) -> Item:
    """A request that one of the tools given can serve."""
    tool = _choose(rng).with_parameter_names(rng)
    request, arguments = tool.request(rng)
    return Item(
        "tool calls", f"call:{sorted(map(str, arguments.values()))}", request,
        render_tool_call(tool.name, arguments),
        thought=_thought_of_call(tool), tools=_offered(rng, tool),
    )  # fmt: skip


def _thought_of_call(tool: Tool) -> str:
    return f"The tool {tool.name} can do this."


def tool_reply_item(rng: Random) -> Item:
    """The turn after a tool has answered: its reply put into a sentence."""
    tool = rng.choice([one for one in all_tools() if one.reply]).with_parameter_names(rng)
    request, arguments = tool.request(rng)
    value = {
        "weather": f"{rng.choice(_REPLIES)}, {rng.randint(-9, 39)} degrees",
        "time": f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
        "number": str(rng.randint(1, 9999)),
        "text": f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
    }[tool.reply_kind]
    call = {"type": "function", "function": {"name": tool.name, "arguments": arguments}}
    history: tuple[Message, ...] = (
        {"role": "user", "content": request},
        {"role": "assistant", "content": "", "tool_calls": [call],
         "thought": _thought_of_call(tool)},
        {"role": "tool", "content": _wrap_reply(rng, tool, value)},
    )  # fmt: skip
    answer = tool.reply.format(v=value, first=next(iter(arguments.values()), ""))
    return Item(
        "tool replies", f"reply:{arguments}:{value}", "", answer,
        thought="The tool has answered. I tell the user what it says.",
        history=history, tools=_offered(rng, tool),
    )  # fmt: skip


def _wrap_reply(rng: Random, tool: Tool, value: str) -> str:
    if rng.random() < 0.5:
        return value
    return json.dumps({rng.choice(("result", "output", "value", tool.reply_kind)): value})


def unneeded_tool_item(rng: Random, plain: Item) -> Item:
    """A plain question while tools are on offer that do not serve it: answered without a call."""
    offered = _offered(rng, _choose(rng))
    names = {tool["function"]["name"] for tool in offered}
    if "add" in names and " + " in plain.answer:
        return unneeded_tool_item(rng, plain)
    return Item(
        "tools not needed",
        f"unneeded:{plain.key}",
        plain.prompt,
        plain.answer,
        thought="No tool is needed. " + plain.thought,
        tools=offered,
    )
