"""Renders conversations for whoever looks for formats, and cuts the reply out of what comes.

What asks is a generator: it yields a `ChatInput` and is sent the prompt, or None where the template
refuses it. So it is the same with an event loop and without.
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
"""Yields what has to be rendered, is sent the text or None, and returns T."""
_TAG_BEGINS = "<["


def rendered(
    messages: list[Message],
    *,
    has_tools: bool,
    is_prompt: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Probing[str | None]:
    """The text of a conversation; None if the template refuses it. `is_prompt`: with the beginning
    of the next reply."""
    return (
        yield ChatInput(
            [dict(message) for message in messages],
            tools=TOOLS if has_tools else None,
            add_generation_prompt=is_prompt,
            chat_template_kwargs=variables,
        )
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """What the template writes around a reply, with tools or without."""

    has_tools: bool
    variables: Mapping[str, Any] | None
    prompt: str
    """The question, with the beginning of the reply."""
    opened: str
    """What the prompt has behind the question's words."""
    header: str
    """What comes between question and answer, if the answer has no reasoning."""
    tail: str
    """What comes after an answer."""

    def reply(self, messages: list[Message]) -> Probing[Reply | None]:
        """The reply that a conversation ends with; None if the template refuses it, or writes the
        rest not as in other ones."""
        text = yield from rendered(messages, has_tools=self.has_tools, variables=self.variables)
        return None if text is None else self._cut(text)

    def _cut(self, text: str) -> Reply | None:
        reply, opened = _behind_question(text), self.opened
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
    """The last place up to this one where a tag begins; 0 if there is none."""
    return max(0, *(text.rfind(char, 0, place + 1) for char in _TAG_BEGINS))


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as the template writes it."""

    text: str
    follows_prompt: bool
    """Whether it continues the prompt, with what that may open."""


def frame(*, has_tools: bool, variables: Mapping[str, Any] | None = None) -> Probing[Frame | None]:
    """The frame; None if the template refuses what it takes to see it."""
    prompt = yield from rendered(
        [QUESTION], has_tools=has_tools, is_prompt=True, variables=variables
    )
    opened = _behind_question(prompt or "")
    if prompt is None or opened is None:
        return None
    plain = yield from rendered(answered(ANSWER), has_tools=has_tools, variables=variables)
    closed = _behind_question(plain or "")
    place = -1 if closed is None else closed.find(ANSWER)
    if closed is None or place < 0:
        return None
    header = shared_begin(opened, closed[:place])
    return Frame(has_tools, variables, prompt, opened, header, closed[place + len(ANSWER) :])


def _behind_question(text: str) -> str | None:
    """What follows the words of the question; None if they are not there."""
    place = text.rfind(QUESTION["content"])
    return None if place < 0 else text[place + len(QUESTION["content"]) :]
