"""Finds the format of calls: the one that parses rendered calls back into the originals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.parsers.detection.conversations import ANSWER, ONE, OTHER, RICH, SCHEMAS, Call, called
from quire.parsers.detection.found import Origin
from quire.parsers.detection.json_in_tags import json_in_tags
from quire.parsers.detection.reasoning import opens
from quire.parsers.detection.rendering import Frame, Probing, Reply
from quire.parsers.events import Message
from quire.parsers.parser import parse_whole
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import TOOL_FORMATS, reply_format
from quire.parsers.tool_format import ToolFormat, texts_within
from quire.structured.tags.parts import Part

_MARK = re.compile(r"</?[^<>\s=]+>|\[[A-Z_]+\]")


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """A format and how it was found."""

    format: ToolFormat
    origin: Origin


@dataclass(frozen=True, slots=True)
class _Sample:
    """Calls, and the reply that the template renders for them."""

    calls: tuple[Call, ...]
    reply: Reply
    content: str = ""


@dataclass(frozen=True, slots=True)
class Samples:
    """The replies on which candidate formats are tried."""

    frame: Frame
    reasoning: ReasoningTags | None
    required: list[_Sample] = field(default_factory=list)
    """Single calls with plain texts and numbers: each must be parsed back exactly."""
    further: list[_Sample] = field(default_factory=list)
    """Samples that many templates render wrongly or refuse; formats that parse them rank higher."""

    def message(self, sample: _Sample, format: ToolFormat) -> Message:
        """The message that a candidate format parses from a sample."""
        tags = self.reasoning
        is_reasoning = (
            tags is not None and sample.reply.follows_prompt and opens(tags, self.frame.prompt)
        )
        reply = reply_format(tags, format)
        return parse_whole(reply, sample.reply.text, SCHEMAS, is_reasoning=is_reasoning)


def render_samples(frame: Frame, reasoning: ReasoningTags | None) -> Probing[Samples | None]:
    """Render replies with calls. None if the template refuses them or writes no calls."""
    samples = Samples(frame, reasoning)
    has_names_as_ids = False
    one = yield from frame.reply(called(ONE))
    if one is not None and ONE.name not in one.text:
        has_names_as_ids = True
        one = yield from frame.reply(called(ONE, has_names_as_ids=True))
    if one is None or ONE.name not in one.text:
        return None
    samples.required.append(_sample(frame, (ONE,), one))
    other = yield from frame.reply(called(OTHER, has_names_as_ids=has_names_as_ids))
    if other is not None:
        samples.required.append(_sample(frame, (OTHER,), other))
    for calls, content in (((RICH,), ""), ((ONE, OTHER), ""), ((ONE,), ANSWER)):
        reply = yield from frame.reply(
            called(*calls, content=content, has_names_as_ids=has_names_as_ids)
        )
        if reply is not None:
            samples.further.append(_sample(frame, calls, reply, content))
    return samples


def _sample(frame: Frame, calls: tuple[Call, ...], reply: Reply, content: str = "") -> _Sample:
    """The sample up to the mark that ends an answer: some templates begin another turn after it."""
    end = frame.tail.strip()
    place = reply.text.find(end, reply.text.rfind(calls[-1].name)) if end else -1
    text = reply.text if place < 0 else reply.text[:place]
    return _Sample(calls, replace(reply, text=text), content)


def best_known(samples: Samples, likely: Sequence[str]) -> FoundCalls | None:
    """The registered format that parses the samples; the most specific one if several do.

    `likely`: formats to prefer among those that parse the samples equally well.
    """
    best: tuple[tuple[Any, ...], str, ToolFormat] | None = None
    for name, make in TOOL_FORMATS.items():
        candidate = make()
        merit = _merit(samples, candidate)
        if merit is None:
            continue
        place = likely.index(name) if name in likely else len(likely)
        key = (*merit[:2], -place, *merit[2:])
        if best is None or key > best[0]:
            best = key, name, candidate
    if best is None:
        return None
    return FoundCalls(best[2], Origin(best[1], "it reads what the chat template writes"))


def described(prompt: str, plain: str, likely: Sequence[str]) -> FoundCalls | None:
    """The format for a template that explains to the model how to call tools but renders no calls:
    one whose marks are in `prompt` (with tools) and not in `plain` (without). Formats with all
    marks present rank first, then those in `likely`, the formats of this model type."""
    best: tuple[tuple[bool, int, int], str, ToolFormat] | None = None
    for name, make in TOOL_FORMATS.items():
        candidate = make()
        begins = [one for one in candidate.markers if one not in candidate.answer_marks]
        if not any(_MARK.search(one) and one in prompt and one not in plain for one in begins):
            continue
        texts = {*candidate.literal_texts(), *texts_within(_form(candidate))}
        marks = {one for text in texts for one in _MARK.findall(text)}
        place = likely.index(name) if name in likely else len(likely)
        length = sum(len(one) for one in texts | marks if one in prompt)
        key = (all(one in prompt for one in marks), -place, length)
        if best is None or key > best[0]:
            best = key, name, candidate
    if best is None:
        return None
    return FoundCalls(best[2], Origin(best[1], "the prompt with tools names its marks"))


def derived(samples: Samples) -> FoundCalls | None:
    """A format derived from the samples: JSON in tags that no known format parses."""
    one, other = samples.required[0], next(iter(samples.required[1:]), None)
    two = next((sample for sample in samples.further if len(sample.calls) == 2), None)
    if other is None:
        return None
    found = json_in_tags(
        one.reply.text, other.reply.text, None if two is None else two.reply.text, ONE, OTHER
    )
    if found is None or not (merit := _merit(samples, found)) or not merit[0]:
        return None
    return FoundCalls(found, Origin("json_in_tags", f"from the chat template: {found}"))


def better(
    samples: Samples, known: FoundCalls | None, derived: FoundCalls | None
) -> FoundCalls | None:
    """The known format, unless only the derived one leaves no marks or it reads more samples."""
    if known is None or derived is None:
        return known or derived
    merits = _merit(samples, derived.format), _merit(samples, known.format)
    least = [(False, 0) if merit is None else merit[:2] for merit in merits]
    return derived if least[0] > least[1] else known


def is_clean(samples: Samples, format: ToolFormat) -> bool:
    """Whether the content keeps no marks of the calls."""
    merit = _merit(samples, format)
    return merit is not None and bool(merit[0])


def _merit(samples: Samples, format: ToolFormat) -> tuple[Any, ...] | None:
    """The ranking key of a candidate; None if it does not parse the required samples.

    The key holds: whether the content is free of markup; the number of further samples parsed; the
    length of the candidate's own call beginnings and marks found in the samples.
    """
    is_clean = True
    for sample in samples.required:
        message = samples.message(sample, format)
        if not _has_calls(message, sample.calls):
            return None
        is_clean &= _without_space(message.content) in _without_space(samples.frame.opened)
    num_read = 0
    for sample in samples.further:
        message = samples.message(sample, format)
        num_read += _has_calls(message, sample.calls) and sample.content in message.content
    text = samples.required[0].reply.text
    marks = [mark for mark in (*format.markers, *format.opening_markers) if mark in text]
    begins = [
        begin for begin in _begins(format.grammar(SCHEMAS, is_parallel=True)) if begin in text
    ]
    return (is_clean, num_read, max(map(len, begins), default=0), max(map(len, marks), default=0))


def _without_space(text: str) -> str:
    return "".join(text.split())


def _has_calls(message: Message, calls: Sequence[Call]) -> bool:
    read = message.tool_calls
    return len(read) == len(calls) and all(
        one.is_complete and call.is_read_as(one.name, one.arguments)
        for one, call in zip(read, calls, strict=True)
    )


def _begins(part: Any) -> Iterator[str]:
    """Yields the texts that begin the tags of a grammar."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "begin" and isinstance(value, str):
                yield value
            else:
                yield from _begins(value)
    elif isinstance(part, list):
        for value in part:
            yield from _begins(value)


def _form(format: ToolFormat) -> Part:
    """The grammar of a call with one argument."""
    tools = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
    return format.grammar(tools, is_parallel=True)
