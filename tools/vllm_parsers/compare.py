"""Compares what Quire's formats read in the recorded cases with vLLM's parsers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.vllm_parsers.families import Family, family_of

from quire.parsers.parser import parse_whole
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format


@dataclass
class Compared:
    """The cases of one family."""

    agree: int = 0
    differ: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """The case, and what Quire reads."""


def compare(cases: Path) -> dict[str, Compared]:
    """By family. Cases that are the same count once, those of no family not at all."""
    found: dict[str, Compared] = {}
    for case in _different(map(json.loads, cases.read_text().splitlines())):
        family = family_of(case)
        if family is None or not case["text"]:  # of machinery, or given as tokens alone
            continue
        compared = found.setdefault("/".join(filter(None, family)), Compared())
        readings = list(_readings(family, case))
        if any(_same(one, case) for one in readings):
            compared.agree += 1
        else:
            compared.differ.append((case, readings[0]))
    return found


def _readings(family: Family, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Possible readings of the text: a test does not say whether the prompt ends within the
    reasoning, or whether a parser of one kind leaves the other kind's parts alone."""
    parts = [family, Family(family.reasoning, None), Family(None, family.tools)]
    for part in parts if "parse" not in case["method"] else parts[:1]:
        for is_reasoning in (False, True):
            read = reading(part, case, is_reasoning=is_reasoning)
            if "tool_calls" in case["method"]:
                read["reasoning"] = ""
            elif "reasoning" in case["method"]:
                read["calls"] = []
            yield read


def reading(family: Family, case: dict[str, Any], *, is_reasoning: bool) -> dict[str, Any]:
    """The message that Quire reads. `is_reasoning`: the prompt ends within the reasoning."""
    tags = REASONING_FORMATS[family.reasoning] if family.reasoning else None
    tools = TOOL_FORMATS[family.tools]() if family.tools else None
    format = reply_format(tags, tools)
    offered = case["tools"] if tools is not None else None
    message = parse_whole(format, case["text"], offered, is_reasoning=is_reasoning and bool(tags))
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    return {"reasoning": message.reasoning, "content": message.content, "calls": calls}


def _different(cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = Counter[str]()
    for case in cases:
        key = json.dumps({name: part for name, part in case.items() if name != "test"})
        file = case["test"].partition("::")[0]
        seen[file + key] += 1
        if seen[file + key] == 1:
            yield case


def _same(read: dict[str, Any], said: dict[str, Any]) -> bool:
    """Whether both agree, except for white space around texts and between parts of JSON."""
    texts = all(read[name].strip() == said[name].strip() for name in ("reasoning", "content"))
    return texts and _values(read["calls"]) == _values(said["calls"])


def _values(calls: list[list[str]]) -> list[tuple[str, Any]]:
    return [(name, _value(arguments)) for name, arguments in calls]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text or {}
