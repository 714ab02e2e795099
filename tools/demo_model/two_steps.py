"""Tasks of two calls one after the other: the second needs the result of the first, or the user
wants them in that order. Every reply of a task is asked for: both calls and the answer."""

from dataclasses import dataclass
from random import Random
from typing import Any

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
)
from tools.demo_model.tools_catalog import Tool, some_value
from tools.demo_model.tools_known import all_tools, tool_named

# Who takes a result: the tool, the parameter, and requests where {r} stands for the result.
_OF_A_CITY = (
    ("get_weather", "city", ("What is the weather in {r}?", "Tell me the weather in {r}.",
                             "How is the weather in {r}?")),
    ("get_time", "city", ("What time is it in {r}?", "Tell me the time in {r}.")),
    ("get_population", "city", ("How many people live in {r}?",
                                "What is the population of {r}?")),
)  # fmt: skip
_OF_A_TEXT = (
    ("send_message", "message", ("Send {to} {r}.", "Tell {to} {r}.", "Let {to} know {r}.",
                                 "Find out {r} and send it to {to}.", "Write {r} to {to}.",
                                 "Get {r} and tell {to}.")),
    ("add_note", "text", ("Note down {r}.", "Save {r} as a note.", "Make a note of {r}.",
                          "Find out {r} and save it as a note.", "Get {r} and note it down.")),
)  # fmt: skip
_OF_A_NUMBER = (
    ("add", "a", ("Add {b} to {r}.", "What is {r} plus {b}?", "Get {r} and add {b} to it.")),
    ("multiply", "a", ("Multiply {r} by {b}.", "What is {r} times {b}?",
                       "Find out {r} and multiply it by {b}.")),
    ("set_timer", "minutes", ("Set a timer for as many minutes as {r}.",
                              "Set a timer of {r} minutes.")),
)  # fmt: skip
_OF_A_PHONE = (("call_number", "number", ("Call {person}.", "Please call {person}.",
                                          "I want to call {person}.", "Phone {person}.",
                                          "Find {r} and call it.")),)  # fmt: skip
# Requests for the second call that speak of the result of a first request before them.
_AFTER = {
    "get_weather": "tell me the weather in that city", "get_time": "tell me the time in that city",
    "get_population": "tell me the population of that city",
    "send_message": "send the result to {to}", "add_note": "save the result as a note",
    "add": "add {b} to the result", "multiply": "multiply the result by {b}",
    "set_timer": "set a timer for that many minutes", "call_number": "call that number",
}  # fmt: skip
_IN_ORDER = (
    "First {a}, then {b}.", "First {a} and then {b}.", "First {a}. After that, {b}.",
    "First {a}. When that is done, {b}.", "{A}. Then {b}.", "{A}, and after that {b}.",
    "Please first {a}, then {b}.", "Step 1: {a}. Step 2: {b}.", "Start with this: {a}. Then {b}.",
    "One after the other: {a}, then {b}.",
)  # fmt: skip


@dataclass(frozen=True)
class _Task:
    """The question, both calls and their results; `needed`: the answer depends on the second call
    alone."""

    text: str
    calls: tuple[Call, Call]
    results: tuple[str, str]
    needed: bool


def _takers(kind: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    match kind:
        case "city":
            return _OF_A_CITY
        case "phone":
            return _OF_A_PHONE
        case "number":
            return _OF_A_NUMBER + _OF_A_TEXT
        case _:
            return _OF_A_TEXT


def _second_values(rng: Random, tool: Tool, parameter: str, result: str) -> dict[str, Any]:
    values = tool.values(rng)
    if tool.parameters[parameter].startswith("int"):
        return values | {parameter: int(result)}
    return values | {parameter: result}


def _dependent(rng: Random) -> _Task:
    """The result of the first call is a value of the second."""
    first_tool = choose_tool(rng, invented=0.15)
    if rng.random() < 0.3:
        first_tool = tool_named(rng.choice(("find_home", "get_phone_number")))
        first_tool = first_tool.with_parameter_names(rng)
    if not first_tool.reply:
        return _dependent(rng)
    first, result = Call(first_tool, first_tool.values(rng)), some_result(rng, first_tool)
    name, parameter, requests = rng.choice(_takers(first_tool.reply_kind))
    if name == first_tool.name:
        return _dependent(rng)
    tool = tool_named(name).with_parameter_names(rng)
    second = Call(tool, _second_values(rng, tool, parameter, result))
    said = {**first.values, **second.values}
    if rng.random() < 0.25:
        asked = rng.choice(first_tool.requests).format(**first.values).rstrip(".?")
        after = _AFTER[name].format(**second.values)
        text = rng.choice(("{a}. Then {b}.", "{a}, then {b}.", "{a}? Then {b}.",
                           "{a} and {b}.")).format(a=asked, b=after)  # fmt: skip
    else:
        text = rng.choice(requests).format(**said, r=first_tool.result_name.format(**first.values))
    return _Task(text, (first, second), (result, some_result(rng, tool)), needed=True)


def _priced(rng: Random) -> _Task:
    """A task about the price of several pieces."""
    price, product = (
        tool_named(name).with_parameter_names(rng) for name in ("get_price", "multiply")
    )
    item, count = some_value("word", rng), rng.randint(2, 90)
    result = some_result(rng, price)
    text = rng.choice((
        "How much do {n} pieces of the {i} cost?", "What do I pay for {n} times the {i}?",
        "I want to buy the {i} {n} times. What does that cost?",
        "What is the price of {n} pieces of the {i}?",
    )).format(n=count, i=item)  # fmt: skip
    calls = (Call(price, {"item": item}), Call(product, {"a": int(result), "b": count}))
    return _Task(text, calls, (result, some_result(rng, product)), needed=True)


def _orders() -> tuple[Tool, ...]:
    """Tools whose requests can be said as an order."""
    return tuple(tool for tool in all_tools() if _order_texts(tool))


def _order_texts(tool: Tool) -> list[str]:
    verbs = ("Tell", "Check", "Get", "Set", "Start", "Turn", "Add", "Multiply", "Roll", "Throw",
             "Search", "Look", "Find", "Save", "Play", "Call", "Dial", "Use")  # fmt: skip
    return [one.rstrip(".") for one in tool.requests if one.split(" ")[0] in verbs]


def _in_order(rng: Random) -> _Task:
    """Two calls that do not need each other, in the order that the user wants."""
    tools = [tool.with_parameter_names(rng) for tool in rng.sample(_orders(), 2)]
    first, second = (Call(tool, tool.values(rng)) for tool in tools)
    orders = [rng.choice(_order_texts(call.tool)).format(**call.values) for call in (first, second)]
    small = [one[0].lower() + one[1:] for one in orders]
    text = rng.choice(_IN_ORDER).format(A=orders[0], a=small[0], b=small[1])
    results = (some_result(rng, first.tool), some_result(rng, second.tool))
    return _Task(text, (first, second), results, needed=False)


def task_turns(rng: Random) -> tuple[list[Message], str, list[Tool], str]:
    """A whole task: its turns but the last, the answer that is the last, its tools and its key."""
    task = rng.choices((_dependent, _priced, _in_order), (6, 1, 3))[0](rng)
    first, second = task.calls
    turns: list[Message] = [
        {"role": "user", "content": task.text},
        call_turn([first], f"First I need {first.tool.name}, then {second.tool.name}.", True),
        result_turn(rng, first.tool, task.results[0]),
        call_turn([second], f"Now I can use {second.tool.name}.", True),
        result_turn(rng, second.tool, task.results[1]),
    ]
    answer = answer_of(task.calls[task.needed :], task.results[task.needed :])
    key = f"two steps:{first.key}:{second.key}"
    return turns, answer, [first.tool, second.tool], key


def two_step_item(rng: Random) -> Item:
    """A call, its result, another call, its result, the answer."""
    turns, answer, tools, key = task_turns(rng)
    return Item(
        "two-step tasks", key, "", answer, thought=THOUGHT_OF_ANSWERS, history=tuple(turns),
        tools=offered(rng, tools, (0, 0, 1)),
    )  # fmt: skip
