"""Finds the marks of a model's reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quire.parsers.detection.conversations import ANSWER, REASONING, answered
from quire.parsers.detection.found import Origin
from quire.parsers.detection.rendering import Frame, Probing
from quire.parsers.parser import parse_whole
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, reply_format

_USUAL = "qwen3"
"""Preferred format if several have equal marks and nothing else decides."""
_CLOSING = ("</", "[/", "[BEGIN ")
"""Beginnings of an end mark that has no other meaning."""
_PAST = "the chat template writes past reasoning this way"
_MAX_MARK_CHARS = 64
SWITCHED_ON = ({"enable_thinking": True, "thinking": True}, {"reasoning_effort": "high"})
"""The variables with which templates turn reasoning on. The effort stands alone, because some
templates refuse efforts that they do not know."""


@dataclass(frozen=True, slots=True)
class FoundReasoning:
    """Reasoning marks, and how they were found."""

    tags: ReasoningTags
    origin: Origin


def find_reasoning(
    frames: Sequence[Frame], sources: Iterable[str], likely: Sequence[str]
) -> Probing[FoundReasoning | None]:
    """Find the reasoning marks that templates write; None if there are none.

    Search order: marks with which a prompt opens the reasoning, marks around the reasoning of a
    past answer, marks that a template contains. `likely`: the formats to prefer.
    """
    text = "\n".join(sources)
    written = "\n".join([*(frame.prompt for frame in frames), text])
    known = _spelled(written, likely)
    for frame in frames:
        opened = {name: tags for name, tags in known.items() if opens(tags, frame.prompt)}
        if opened:
            return _longest(opened, "the chat template opens it in the prompt")
    for frame in frames:
        reply = yield from frame.reply(answered(ANSWER, REASONING))
        if reply is None or REASONING not in reply.text:
            continue
        read = {name: tags for name, tags in known.items() if _is_read(tags, reply.text)}
        if read:
            return _longest(read, _PAST)
        if (tags := _marks_around(reply.text)) is not None:
            return FoundReasoning(tags, Origin(f"{tags.begin}...{tags.end}", _PAST))
    for is_named in (_has_both, _has_end):
        named = [name for name, tags in known.items() if is_named(tags, text)]
        modest = [name for name in named if not known[name].is_implied]
        if named := modest or named:
            name = max(named, key=lambda name: _num_named(known[name], text))
            return FoundReasoning(known[name], Origin(name, "the chat template names its marks"))
    return None


def _spelled(text: str, likely: Sequence[str]) -> dict[str, ReasoningTags]:
    """The families' tags as this text spells them, in the order of preference."""
    names = sorted(REASONING_FORMATS, key=lambda name: _rank(name, likely))
    return {name: REASONING_FORMATS[name].spelled_in(text) for name in names}


def _marks_around(text: str) -> ReasoningTags | None:
    """Marks of a rendered answer with reasoning that no family has; None if other text surrounds
    them."""
    begin, _, rest = text.partition(REASONING)
    end, _, _ = rest.partition(ANSWER)
    marks = begin.strip(), end.strip()
    if any(len(mark) > _MAX_MARK_CHARS or not _has_letters(mark) for mark in marks):
        return None
    tags = ReasoningTags(*marks)
    return tags if _is_read(tags, text) else None


def _has_letters(mark: str) -> bool:
    return any(char.isalpha() for char in mark)


def named_by_marks(tags: ReasoningTags, likely: Sequence[str], how: str) -> FoundReasoning:
    """The family format with these marks, which has more details; otherwise the marks alone."""
    names = sorted(REASONING_FORMATS, key=lambda name: _rank(name, likely))
    for name in names:
        family = REASONING_FORMATS[name]
        if (family.begin, family.end) == (tags.begin, tags.end):
            return FoundReasoning(family, Origin(name, how))
    return FoundReasoning(tags, Origin(f"{tags.begin}...{tags.end}", how))


def _rank(name: str, likely: Sequence[str]) -> tuple[bool, ...]:
    """The sort key of a format; the least ranks first. Implied reasoning ranks late, so that a
    reply is not treated as reasoning without evidence."""
    tags = REASONING_FORMATS[name]
    return tags.is_content, tags.is_implied, name not in likely, name != _USUAL


def opens(tags: ReasoningTags, prompt: str) -> bool:
    """Whether the prompt ends with the mark that begins reasoning."""
    return replace(tags, is_implied=False).is_open_in(prompt)


def _is_read(tags: ReasoningTags, text: str) -> bool:
    message = parse_whole(reply_format(tags, None), text)
    return message.reasoning.strip() == REASONING and message.content.strip() == ANSWER


def _has_both(tags: ReasoningTags, text: str) -> bool:
    return tags.begin in text and tags.end in text


def _has_end(tags: ReasoningTags, text: str) -> bool:
    return tags.end in text and tags.end.startswith(_CLOSING)


def _num_named(tags: ReasoningTags, text: str) -> int:
    """Total length of the marks that a text contains."""
    marks = {tags.begin, tags.end, *tags.answer_marks}
    return sum(len(mark) for mark in marks if mark in text)


def _longest(found: Mapping[str, ReasoningTags], how: str) -> FoundReasoning:
    """The first format among those with the longest begin mark and header."""

    def length(name: str) -> int:
        return len(found[name].begin) + len(found[name].header.strip())

    name = max(found, key=length)
    return FoundReasoning(found[name], Origin(name, how))
