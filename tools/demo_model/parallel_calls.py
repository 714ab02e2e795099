"""Requests that need two or three calls at once, and the answer made of their results."""

from collections.abc import Callable, Sequence
from random import Random

from tools.demo_model.example import Item, Message
from tools.demo_model.tool_turns import (
    THOUGHT_OF_ANSWERS,
    Call,
    answer_of,
    call_turn,
    choose_tool,
    offered,
    result_turn,
    some_result,
    thought_of_calls,
)
from tools.demo_model.tools_catalog import Tool, some_value
from tools.demo_model.tools_known import tool_named

_CITY_TOPICS = {"get_weather": "weather", "get_time": "time", "get_population": "population"}
_TOPIC_REQUESTS = (
    "What is the {t} in {c}?", "Tell me the {t} in {c}.", "What are the {t} in {c}?",
    "I need the {t} of {c}.", "Give me the {t} for {c}.", "{t} in {c}, please",
)  # fmt: skip
_MORE_OF_A_CITY = (
    "And in {v}?", "And {v}?", "What about {v}?", "And what about {v}?", "And for {v}?",
    "Also in {v}, please.", "How about {v}?", "The same for {v}.", "And how about {v}?",
)  # fmt: skip
_MORE = (
    "And {v}?", "What about {v}?", "And for {v}?", "Also for {v}, please.", "How about {v}?",
    "The same for {v}.", "The same with {v}.", "And with {v}?",
)  # fmt: skip
_LEADS = (
    "", "", "", "", "Two things: ", "Please do all of this: ", "Do this at once: ",
    "Please help me: ", "Hi! ", "I have some wishes. ",
)  # fmt: skip
_BETWEEN = (" And ", " Also, ", " ", " ", "\n", " And please: ", " Then one more: ")

Choose = Callable[[Random], Tool]


def joined_names(words: Sequence[str], rng: Random, last: str = " and ") -> str:
    """`a, b and c`; now and then each with `and`, or with commas alone."""
    if rng.random() < 0.15:
        return last.join(words)
    if last == " and " and rng.random() < 0.1:
        return ", ".join(words)
    return ", ".join(words[:-1]) + last + words[-1]


def _how_many(rng: Random) -> int:
    return 2 if rng.random() < 0.65 else 3


def _distinct(rng: Random, tool: Tool, count: int) -> list[Call]:
    found: dict[str, Call] = {}
    while len(found) < count:
        call = Call(tool, tool.values(rng))
        found.setdefault(call.key, call)
    return list(found.values())


def is_listable(tool: Tool) -> bool:
    """Whether the tool has one parameter, whose values can be listed."""
    return len(tool.parameters) == 1 and "phrase" not in tool.parameters.values()


def tool_of_one_value(rng: Random, choose: Choose = choose_tool) -> Tool:
    """A tool whose values can be listed."""
    while True:
        tool = choose(rng)
        if is_listable(tool):
            return tool


def _only_value(call: Call) -> str:
    return str(*call.values.values())


def _listed(rng: Random, choose: Choose) -> tuple[str, list[Call]]:
    """One tool, its values listed in one request."""
    tool = tool_of_one_value(rng, choose)
    calls = _distinct(rng, tool, _how_many(rng))
    (key,) = tool.parameters
    request = rng.choice(tool.requests)
    last = " and the " if f"the {{{key}}}" in request and rng.random() < 0.8 else " and "
    if f"in {{{key}}}" in request and rng.random() < 0.25:
        last = " and in "
    return request.format(**{key: joined_names([*map(_only_value, calls)], rng, last)}), calls


def _elliptical(rng: Random, choose: Choose) -> tuple[str, list[Call]]:
    """One tool, asked for in full once and in short after that."""
    tool = tool_of_one_value(rng, choose)
    calls = _distinct(rng, tool, _how_many(rng))
    short = _MORE_OF_A_CITY if "city" in tool.parameters.values() else _MORE
    first = _ended(rng.choice(tool.requests).format(**calls[0].values))
    more = [rng.choice(short).format(v=_only_value(call)) for call in calls[1:]]
    return " ".join([first, *more]), calls


def _ended(request: str) -> str:
    return request if request[-1] in ".?!" else request + "."


def _small(request: str) -> str:
    """In the middle of a sentence."""
    return request if request.startswith("I ") else request[0].lower() + request[1:]


def _requests_in_a_row(rng: Random, choose: Choose) -> tuple[str, list[Call]]:
    """Full requests, to one tool or several, in one text."""
    if rng.random() < 0.3:
        calls = _distinct(rng, choose(rng), _how_many(rng))
    else:
        tools = {tool.name: tool for tool in (choose(rng) for _ in range(_how_many(rng)))}
        calls = [Call(tool, tool.values(rng)) for tool in tools.values()]
        if len(calls) == 1:
            return _requests_in_a_row(rng, choose)
    requests = [rng.choice(call.tool.requests).format(**call.values) for call in calls]
    phrases = any("phrase" in call.tool.parameters.values() for call in calls)
    if not phrases and rng.random() < 0.5:
        ends = requests[-1][-1] if requests[-1][-1] in ".?" else ""
        bare = [_small(one.rstrip(".?")) for one in requests]
        text = joined_names(bare, rng) + ends
        return rng.choice(_LEADS) + text[0].upper() + text[1:], calls
    text = _ended(requests[0])
    for one in requests[1:]:
        between = rng.choice(_BETWEEN)
        text += between + _ended(_small(one) if between.strip() else one)
    return rng.choice(_LEADS) + text, calls


def _topics_of_a_city(rng: Random) -> tuple[str, list[Call]]:
    """Several tools that are asked about one city."""
    names = rng.sample(sorted(_CITY_TOPICS), _how_many(rng))
    city = some_value("city", rng)
    calls = [Call(tool_named(name).with_parameter_names(rng), {"city": city}) for name in names]
    last = " and the " if rng.random() < 0.6 else " and "
    topics = joined_names([_CITY_TOPICS[name] for name in names], rng, last)
    text = rng.choice(_TOPIC_REQUESTS).format(t=topics, c=city)
    return text[0].upper() + text[1:], calls


def request_of_calls(rng: Random, choose: Choose = choose_tool) -> tuple[str, list[Call]]:
    """A user's text that asks for two or three calls at once."""
    kind = rng.choices((_listed, _elliptical, _requests_in_a_row), (4, 3, 4))[0]
    if choose is choose_tool and rng.random() < 0.12:
        text, calls = _topics_of_a_city(rng)
    else:
        text, calls = kind(rng, choose)
    if rng.random() < 0.1 and not text.startswith("Please"):
        text = "Please " + _small(text)
    return text, calls


def calls_key(calls: Sequence[Call]) -> str:
    """The key of a request for these calls at once."""
    return f"parallel:{sorted(call.key for call in calls)}"


def _tools_of(calls: Sequence[Call]) -> list[Tool]:
    return list({call.tool.name: call.tool for call in calls}.values())


def parallel_item(rng: Random) -> Item:
    """A request that needs two or three calls in one reply."""
    text, calls = request_of_calls(rng)
    return Item(
        "parallel calls", calls_key(calls), text, "\n".join(call.text for call in calls),
        thought=thought_of_calls(calls), tools=offered(rng, _tools_of(calls), (0, 0, 1, 1)),
    )  # fmt: skip


def parallel_reply_item(rng: Random) -> Item:
    """The turn after two or three tools have answered."""
    text, calls = request_of_calls(rng)
    results = [some_result(rng, call.tool) for call in calls]
    history: tuple[Message, ...] = (
        {"role": "user", "content": text},
        call_turn(calls),
        *(result_turn(rng, call.tool, result)
          for call, result in zip(calls, results, strict=True)),
    )  # fmt: skip
    return Item(
        "parallel replies", calls_key(calls), "", answer_of(calls, results),
        thought=THOUGHT_OF_ANSWERS, history=history,
        tools=offered(rng, _tools_of(calls), (0, 0, 1)),
    )  # fmt: skip


def later_request(rng: Random, tool: Tool, is_last: bool) -> tuple[str, Call]:
    """A user's text for a call; sometimes shortened if the tool was called last as well."""
    call = Call(tool, tool.values(rng))
    if is_last and is_listable(tool) and rng.random() < 0.4:
        short = _MORE_OF_A_CITY if "city" in tool.parameters.values() else _MORE
        return rng.choice(short).format(v=_only_value(call)), call
    return rng.choice(tool.requests).format(**call.values), call
