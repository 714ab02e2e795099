"""Finds out how much of the last prompt and its reply a chat's next turn reuses (prefix cache).

A chat template may render an earlier reply differently from how the model generated it: without its
reasoning, or without the empty reasoning block that its prompt ended with. The next prompt then
differs from that place on, and the rest is computed again. The answer is found by rendering short
conversations, so it holds for any template. Called by `quire explain`; knows no tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from quire.errors import QuireError

Message = dict[str, Any]

_SYSTEM: Message = {"role": "system", "content": "You answer in one sentence."}
_QUESTIONS = ("What is the first?", "What is the second?", "What is the third?")
_ANSWERS = ("This is the first.", "This is the second.")
_REASONING = "I know this one."
_OPEN, _CLOSED = "<think>\n", "\n</think>\n\n"
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "look_up", "arguments": {"word": "first"}},
}
_TOOL_REPLY: Message = {
    "role": "tool",
    "tool_call_id": "call00001",
    "name": "look_up",
    "content": "a word of five letters",
}


class Render(Protocol):
    """Renders messages to the prompt of the next reply. Raises QuireError."""

    def __call__(
        self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any], /
    ) -> str: ...


class ReusedPart(IntEnum):
    """The part of a prompt and its reply that the next turn's prompt begins with."""

    LESS = 0
    """Less than the prompt: earlier turns are rendered differently."""
    PROMPT = 1
    """The prompt up to its last question, but not the reply."""
    ALL = 2
    """The prompt and its reply."""


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """What the next turn reuses, by the kind of reply. Kinds that cannot occur are left out."""

    reused: dict[str, ReusedPart]

    def __str__(self) -> str:
        if not self.reused:
            return "unknown: the chat template refuses every conversation that was tried"
        worst = min(self.reused.values())
        if worst is ReusedPart.ALL:
            return "begins with the last prompt and its reply: the prefix cache serves both"
        what = "the last reply" if worst is ReusedPart.PROMPT else "earlier turns"
        kinds = ", ".join(
            kind for kind, reused in self.reused.items() if reused is not ReusedPart.ALL
        )
        return (
            f"computes {what} again: the chat template renders past replies differently from how "
            f"they were generated ({kinds})"
        )


def probe_prefix_reuse(render: Render, *, has_reasoning: bool) -> PrefixReuse:
    """Renders short conversations and compares each prompt with the next one.

    `has_reasoning`: the template handles reasoning, so replies with reasoning are tried too.
    """
    reused = {"without reasoning": _best(render, _plain), "tool calls": _best(render, _tool_call)}
    if has_reasoning:
        # A client sends reasoning back in the content or in a field of its own.
        reused["with reasoning"] = _best(render, _reasoning_in_content, _reasoning_in_field)
    return PrefixReuse({kind: found for kind, found in reused.items() if found is not None})


_Probe = Callable[[Render, list[Message]], ReusedPart | None]


def _best(render: Render, *probes: _Probe) -> ReusedPart | None:
    """The best of several ways to send a reply back; None if the template allows none."""
    found = [_with_or_without_system(render, probe) for probe in probes]
    return max((reused for reused in found if reused is not None), default=None)


def _with_or_without_system(render: Render, probe: _Probe) -> ReusedPart | None:
    for system in ([_SYSTEM], []):
        try:
            return probe(render, system)
        except QuireError:  # many templates allow no system prompt, or no tools
            continue
    return None


def _plain(render: Render, system: list[Message]) -> ReusedPart | None:
    def ask(messages: list[Message]) -> str:
        return render(messages, None, _switch(False))

    first, second = (_assistant(answer) for answer in _ANSWERS)
    messages = [*system, _user(0), first, _user(1)]
    before = ask(messages)
    if _opens_reasoning(before):
        return None
    return _compare(before, _QUESTIONS[1], _ANSWERS[1], ask([*messages, second, _user(2)]))


def _reasoning_in_content(render: Render, system: list[Message]) -> ReusedPart | None:
    return _reasoning(render, system, is_in_content=True)


def _reasoning_in_field(render: Render, system: list[Message]) -> ReusedPart | None:
    return _reasoning(render, system, is_in_content=False)


def _reasoning(render: Render, system: list[Message], *, is_in_content: bool) -> ReusedPart | None:
    def ask(messages: list[Message]) -> str:
        return render(messages, None, _switch(True))

    opened = ask([*system, _user(0)])
    if opened.rstrip().endswith("</think>"):
        return None
    opening = _OPEN if not _opens_reasoning(opened) else "" if opened.endswith("\n") else "\n"
    replies = [opening + _REASONING + _CLOSED + answer for answer in _ANSWERS]
    first, second = (
        _assistant(reply) if is_in_content else _assistant(answer, reasoning_content=_REASONING)
        for reply, answer in zip(replies, _ANSWERS, strict=True)
    )
    messages = [*system, _user(0), first, _user(1)]
    after = ask([*messages, second, _user(2)])
    return _compare(ask(messages), _QUESTIONS[1], replies[1], after)


def _tool_call(render: Render, system: list[Message]) -> ReusedPart | None:
    """A tool call and the reply after it. The text of the call is in the model's own format, so
    the call itself is not compared."""

    def ask(messages: list[Message]) -> str:
        return render(messages, [_TOOL], _switch(False))

    asked = [*system, _user(0)]
    called = [*asked, _assistant("", tool_calls=[_CALL]), _TOOL_REPLY]
    before, between = ask(asked), ask(called)
    if _opens_reasoning(before) or not ("look_up" in between and _TOOL_REPLY["content"] in between):
        return None
    after = ask([*called, _assistant(_ANSWERS[0]), _user(1)])
    return min(
        _compare(before, _QUESTIONS[0], "", between),
        _compare(between, _TOOL_REPLY["content"], _ANSWERS[0], after),
    )


def _compare(before: str, last: str, reply: str, after: str) -> ReusedPart:
    """Compares the prompts of two turns, `before` and `after`. `last` is the text of the last
    message in `before`. White space before the reply is allowed: many models generate it."""
    if after.startswith(before) and after[len(before) :].lstrip().startswith(reply):
        return ReusedPart.ALL
    asked = before[: before.rfind(last) + len(last)]
    return ReusedPart.PROMPT if after.startswith(asked) else ReusedPart.LESS


def _switch(is_on: bool) -> dict[str, Any]:
    """The variables with which templates turn reasoning on or off."""
    return {"enable_thinking": is_on, "thinking": is_on}


def _opens_reasoning(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def _user(number: int) -> Message:
    return {"role": "user", "content": _QUESTIONS[number]}


def _assistant(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}
