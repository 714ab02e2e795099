"""Finds the format of calls in the words of a prompt: for chat templates that tell the model how to
call tools, and do not write the calls of a conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quire.parsers.detection.calls import FoundCalls
from quire.parsers.detection.found import Origin
from quire.parsers.format import Part, ToolFormat, texts_within
from quire.parsers.registry import TOOL_FORMATS

_MARK = re.compile(r"</?[^<>\s=]+>|\[[A-Z_]+\]")


def described(prompt: str, plain: str, likely: Sequence[str]) -> FoundCalls | None:
    """The format whose marks are in a prompt with tools and not in `plain`, the same prompt without
    them; None if there is none. One of which all marks are there comes before others, then one of
    `likely`, the formats of this kind of model."""
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


def _form(format: ToolFormat) -> Part:
    """Of a call with an argument."""
    tools = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
    return format.grammar(tools, is_parallel=True)
