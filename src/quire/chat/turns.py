"""Whether a chat's next turn finds the last prompt and its reply in the prefix cache.

A chat template may render an earlier reply otherwise than the model generated it: without its
thought, or without the empty thought that its prompt ended with. The next prompt then differs
from that place on, and the rest is computed again. Found by rendering short conversations, so
it holds for any template. Called by `quire explain`; knows no tokens.
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
_THOUGHT = "I know this one."
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


class Kept(IntEnum):
    """How much of a prompt and its reply the next turn's prompt begins with."""

    LESS = 0
    """Not even the last question: earlier turns are rendered anew."""
    PROMPT = 1
    """The prompt up to its last question, but not the reply."""
    ALL = 2
    """The prompt and its reply."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What the next turn keeps, by the kind of reply; a kind that cannot occur is left out."""

    kept: dict[str, Kept]

    def __str__(self) -> str:
        if not self.kept:
            return "unknown: the chat template refuses every conversation that was tried"
        worst = min(self.kept.values())
        if worst is Kept.ALL:
            return "begins with the last prompt and its reply: the prefix cache serves both"
        what = "the last reply" if worst is Kept.PROMPT else "earlier turns"
        kinds = ", ".join(kind for kind, kept in self.kept.items() if kept is not Kept.ALL)
        return (
            f"computes {what} again: the chat template renders past replies differently from how "
            f"they were generated ({kinds})"
        )


def probe_turns(render: Render, *, has_thoughts: bool) -> Turns:
    """Renders short conversations and compares each prompt with the next one.

    `has_thoughts`: the template knows of thoughts, so that replies with one are tried.
    """
    kept = {"without a thought": _best(render, _plain), "tool calls": _best(render, _tool_call)}
    if has_thoughts:
        # A client sends a thought back in the content or beside it; one of them is enough.
        kept["with a thought"] = _best(render, _thought_within, _thought_beside)
    return Turns({kind: found for kind, found in kept.items() if found is not None})


_Probe = Callable[[Render, list[Message]], Kept | None]


def _best(render: Render, *probes: _Probe) -> Kept | None:
    """The best of several ways to send a reply back; None if the template allows none."""
    found = [_with_or_without_system(render, probe) for probe in probes]
    return max((kept for kept in found if kept is not None), default=None)


def _with_or_without_system(render: Render, probe: _Probe) -> Kept | None:
    for system in ([_SYSTEM], []):
        try:
            return probe(render, system)
        except QuireError:  # many templates allow no system prompt, or no tools
            continue
    return None


def _plain(render: Render, system: list[Message]) -> Kept | None:
    def ask(messages: list[Message]) -> str:
        return render(messages, None, _switch(False))

    first, second = (_assistant(answer) for answer in _ANSWERS)
    messages = [*system, _user(0), first, _user(1)]
    before = ask(messages)
    if _opens_thought(before):
        return None
    return _compare(before, _QUESTIONS[1], _ANSWERS[1], ask([*messages, second, _user(2)]))


def _thought_within(render: Render, system: list[Message]) -> Kept | None:
    return _thought(render, system, is_within=True)


def _thought_beside(render: Render, system: list[Message]) -> Kept | None:
    return _thought(render, system, is_within=False)


def _thought(render: Render, system: list[Message], *, is_within: bool) -> Kept | None:
    def ask(messages: list[Message]) -> str:
        return render(messages, None, _switch(True))

    opened = ask([*system, _user(0)])
    if opened.rstrip().endswith("</think>"):
        return None
    opening = _OPEN if not _opens_thought(opened) else "" if opened.endswith("\n") else "\n"
    replies = [opening + _THOUGHT + _CLOSED + answer for answer in _ANSWERS]
    first, second = (
        _assistant(reply) if is_within else _assistant(answer, reasoning_content=_THOUGHT)
        for reply, answer in zip(replies, _ANSWERS, strict=True)
    )
    messages = [*system, _user(0), first, _user(1)]
    after = ask([*messages, second, _user(2)])
    return _compare(ask(messages), _QUESTIONS[1], replies[1], after)


def _tool_call(render: Render, system: list[Message]) -> Kept | None:
    """From the question to the call, whose text only the model's own format tells, and on."""

    def ask(messages: list[Message]) -> str:
        return render(messages, [_TOOL], _switch(False))

    asked = [*system, _user(0)]
    called = [*asked, _assistant("", tool_calls=[_CALL]), _TOOL_REPLY]
    before, between = ask(asked), ask(called)
    if _opens_thought(before) or not ("look_up" in between and _TOOL_REPLY["content"] in between):
        return None
    after = ask([*called, _assistant(_ANSWERS[0]), _user(1)])
    return min(
        _compare(before, _QUESTIONS[0], "", between),
        _compare(between, _TOOL_REPLY["content"], _ANSWERS[0], after),
    )


def _compare(before: str, last: str, reply: str, after: str) -> Kept:
    """`last`: the text of the last message in `before`. White space may lie before the reply:
    many models generate it."""
    if after.startswith(before) and after[len(before) :].lstrip().startswith(reply):
        return Kept.ALL
    asked = before[: before.rfind(last) + len(last)]
    return Kept.PROMPT if after.startswith(asked) else Kept.LESS


def _switch(is_on: bool) -> dict[str, Any]:
    """The names under which templates have the switch for thoughts."""
    return {"enable_thinking": is_on, "thinking": is_on}


def _opens_thought(prompt: str) -> bool:
    return prompt.rstrip().endswith("<think>")


def _user(number: int) -> Message:
    return {"role": "user", "content": _QUESTIONS[number]}


def _assistant(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}
