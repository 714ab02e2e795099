"""Longer chats with tools: one request after another to the same few tools, every reply asked for.

A text of these has many calls and answers for one list of tools, so it is dense practice.
"""

from collections.abc import Callable
from random import Random

from tools.demo_model.example import Item, Message, is_held_out
from tools.demo_model.parallel_calls import (
    calls_key,
    is_listable,
    later_request,
    request_of_calls,
    tool_of_one_value,
)
from tools.demo_model.structured import call_key
from tools.demo_model.tool_turns import (
    THOUGHT_OF_ANSWER,
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
from tools.demo_model.tools_catalog import Tool
from tools.demo_model.two_steps import task_turns


def _turns_of(rng: Random, text: str, calls: list[Call]) -> list[Message]:
    """A request, its calls, their results and the answer; a held-out request is not asked for."""
    results = [some_result(rng, call.tool) for call in calls]
    key = call_key(calls[0]) if len(calls) == 1 else calls_key(calls)
    asked = not is_held_out(key)
    return [
        {"role": "user", "content": text},
        call_turn(calls, asked=asked),
        *(result_turn(rng, call.tool, result)
          for call, result in zip(calls, results, strict=True)),
        {"role": "assistant", "content": answer_of(calls, results),
         "thought": THOUGHT_OF_ANSWER if len(calls) == 1 else THOUGHT_OF_ANSWERS, "asked": asked},
    ]  # fmt: skip


def tool_thread(rng: Random, plain: Callable[[Random], Item]) -> Item:
    """Two to four requests to the same tools, now and then a plain question between them."""
    box = [tool_of_one_value(rng), choose_tool(rng)]
    turns: list[Message] = []
    if rng.random() < 0.4:
        task, answer, needed, key = task_turns(rng)
        if not is_held_out(key):
            box = [*needed, *box]
            turns = [*task, {"role": "assistant", "content": answer,
                             "thought": THOUGHT_OF_ANSWERS, "asked": True}]  # fmt: skip
    # Of two tools of one name the first is kept: a task has used it.
    box = list({tool.name: tool for tool in reversed(box)}.values())
    names = {tool.name for tool in box}
    if not any(is_listable(tool) for tool in box):
        return tool_thread(rng, plain)
    for _ in range(rng.randint(2, 4) - bool(turns)):
        kind = rng.random()
        if kind < 0.2:
            turns += _plain_turns(rng, plain, names)
        elif kind < 0.55:
            tool = rng.choice(box)
            text, call = _request(rng, tool, turns)
            turns += _turns_of(rng, text, [call])
        else:
            turns += _turns_of(rng, *request_of_calls(rng, lambda rng: rng.choice(box)))
    text, call = _request(rng, rng.choice(box), turns)
    while is_held_out(call_key(call)):
        text, call = _request(rng, rng.choice(box), turns)
    return Item(
        "tool calls, later", call_key(call), text, call.text, thought=thought_of_calls([call]),
        history=tuple(turns), tools=offered(rng, box, (0, 0, 1)),
    )  # fmt: skip


def _request(rng: Random, tool: Tool, turns: list[Message]) -> tuple[str, Call]:
    last = [turn["tool_calls"][-1]["function"]["name"] for turn in turns if "tool_calls" in turn]
    return later_request(rng, tool, last[-1:] == [tool.name])


def _plain_turns(rng: Random, plain: Callable[[Random], Item], names: set[str]) -> list[Message]:
    item = plain(rng)
    if " + " in item.answer or names & set(item.would_call):
        return []
    thought = "No tool is needed. " + item.thought
    return [
        {"role": "user", "content": item.prompt},
        {"role": "assistant", "content": item.answer, "thought": thought, "asked": True},
    ]
