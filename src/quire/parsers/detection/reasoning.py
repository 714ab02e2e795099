"""Finds the marks of a model's reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.parsers.detection.conversations import ANSWER, REASONING, answered
from quire.parsers.detection.found import Origin
from quire.parsers.detection.rendering import Frame, Probing
from quire.parsers.format import ReasoningTags
from quire.parsers.parser import parse_whole
from quire.parsers.registry import REASONING_FORMATS, reply_format

SWITCHED_ON = {"enable_thinking": True, "thinking": True}
"""The variables with which templates turn reasoning on."""


@dataclass(frozen=True, slots=True)
class FoundReasoning:
    """Marks, and how they were found."""

    tags: ReasoningTags
    origin: Origin


def find_reasoning(
    frames: Sequence[Frame], sources: Iterable[str], likely: Sequence[str]
) -> Probing[FoundReasoning | None]:
    """The marks that templates write; None if they know of none.

    In this order: those that a prompt opens the reasoning with; those that a past answer's
    reasoning is between; those that a template names. `likely`: the formats to prefer.
    """
    names = sorted(REASONING_FORMATS, key=lambda name: name not in likely)
    for frame in frames:
        opened = [name for name in names if opens(REASONING_FORMATS[name], frame.prompt)]
        if opened:
            return _found(_longest(opened), "the chat template opens it in the prompt")
    for frame in frames:
        reply = yield from frame.reply(answered(ANSWER, REASONING))
        if reply is None or REASONING not in reply.text:
            continue
        read = [name for name in names if _is_read(REASONING_FORMATS[name], reply.text)]
        if read:
            return _found(_longest(read), "the chat template writes past reasoning so")
    text = "\n".join(sources)
    named = [name for name in names if _is_named(REASONING_FORMATS[name], text)]
    return _found(_longest(named), "the chat template names its marks") if named else None


def opens(tags: ReasoningTags, prompt: str) -> bool:
    """Whether the prompt ends with the mark that begins reasoning."""
    begin = tags.begin.strip()
    return bool(begin) and prompt.rstrip().endswith(begin)


def _is_read(tags: ReasoningTags, text: str) -> bool:
    message = parse_whole(reply_format(tags, None), text)
    return message.reasoning.strip() == REASONING and message.content.strip() == ANSWER


def _is_named(tags: ReasoningTags, text: str) -> bool:
    begin, end = tags.begin.strip(), tags.end.strip()
    return bool(begin and end) and begin in text and end in text


def _longest(names: Iterable[str]) -> str:
    """The first of those with the longest marks."""
    return max(names, key=lambda name: len(REASONING_FORMATS[name].begin))


def _found(name: str, how: str) -> FoundReasoning:
    return FoundReasoning(REASONING_FORMATS[name], Origin(name, how))
