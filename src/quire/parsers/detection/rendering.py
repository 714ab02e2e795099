"""Renders conversations to detect formats, and cuts the reply out of the rendered text.

Detection code is a generator: it yields a `ChatInput` and receives the rendered text, or None if
the template refuses it. The same code therefore works with and without an event loop.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.chat.job import ChatInput
from quire.parsers.detection.conversations import ANSWER, QUESTION, TOOLS, Message, answered
from quire.parsers.detection.shared_text import shared_begin, shared_end

T = TypeVar("T")
Probing = Generator[ChatInput, str | None, T]
"""Yields the chats to render, receives each text or None, and returns T."""
_TAG_BEGINS = "<["


def rendered(
    messages: list[Message],
    *,
    has_tools: bool,
    is_prompt: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Probing[str | None]:
    """The text of a conversation; None if the template refuses it. `is_prompt`: add the beginning
    of the next reply."""
    return (
        yield ChatInput(
            [dict(message) for message in messages],
            tools=TOOLS if has_tools else None,
            add_generation_prompt=is_prompt,
            variables=variables,
        )
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """The text that the template writes around a reply, with or without tools."""

    has_tools: bool
    variables: Mapping[str, Any] | None
    prompt: str
    """The question, and the beginning of the reply."""
    opened: str
    """The part of the prompt after the question."""
    header: str
    """The text between question and answer, for an answer without reasoning."""
    tail: str
    """The text after an answer."""

    def reply(self, messages: list[Message]) -> Probing[Reply | None]:
        """The reply at the end of a conversation; None if the template refuses the conversation or
        the question is not found."""
        text = yield from rendered(messages, has_tools=self.has_tools, variables=self.variables)
        return None if text is None else self._cut(text)

    def _cut(self, text: str) -> Reply | None:
        reply, opened = _after_question(text), self.opened
        if reply is None:
            return None
        for beginning in (opened, self.header, opened.strip(), self.header.strip()):
            space = len(reply) - len(reply.lstrip()) if beginning == beginning.strip() else 0
            if beginning and reply.startswith(beginning, space):
                rest = self._without_tail(reply[space + len(beginning) :])
                return Reply(rest, follows_prompt=beginning.strip() == opened.strip())
        begin = _before_a_tag(opened, len(shared_begin(opened, reply)))
        return Reply(self._without_tail(reply[begin:]), follows_prompt=not opened.strip())

    def _without_tail(self, reply: str) -> str:
        for text, tail in ((reply, self.tail), (reply.rstrip(), self.tail.strip())):
            if text.endswith(tail):
                return text[: len(text) - len(tail)]
        shared = shared_end(reply, self.tail)
        while shared and shared[0] not in _TAG_BEGINS:
            shared = shared[1:]
        return reply[: len(reply) - len(shared)]


def _before_a_tag(text: str, place: int) -> int:
    """The last position up to `place` where a tag begins; 0 if there is none."""
    return max(0, *(text.rfind(char, 0, place + 1) for char in _TAG_BEGINS))


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as the template writes it."""

    text: str
    follows_prompt: bool
    """Whether the reply continues the prompt, including reasoning that the prompt opens."""


def frame(*, has_tools: bool, variables: Mapping[str, Any] | None = None) -> Probing[Frame | None]:
    """Build the frame; None if the template refuses one of the conversations that it needs."""
    prompt = yield from rendered(
        [QUESTION], has_tools=has_tools, is_prompt=True, variables=variables
    )
    opened = _after_question(prompt or "")
    if prompt is None or opened is None:
        return None
    plain = yield from rendered(answered(ANSWER), has_tools=has_tools, variables=variables)
    closed = _after_question(plain or "")
    place = -1 if closed is None else closed.find(ANSWER)
    if closed is None or place < 0:
        return None
    header = shared_begin(opened, closed[:place])
    return Frame(has_tools, variables, prompt, opened, header, closed[place + len(ANSWER) :])


def _after_question(text: str) -> str | None:
    """The text after the question; None if the question is not found."""
    place = text.rfind(QUESTION["content"])
    return None if place < 0 else text[place + len(QUESTION["content"]) :]
