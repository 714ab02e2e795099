"""Compares what Quire's formats read in the recorded cases with vLLM's parsers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

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


class Family(NamedTuple):
    """Names of the formats; None: there is none."""

    reasoning: str | None
    tools: str | None


_OF_FILES = {
    "deepseek_v32": Family("deepseek_v3", "deepseek_v32"),
    "deepseek_v4": Family("deepseek_v4", "deepseek_v4"),
    "deepseek_v41": Family("deepseek_v41", "deepseek_v41"),
    "gemma4": Family("gemma4", "gemma4"),
    "glm47_moe": Family("glm47", "glm47"),
    "granite": Family("granite_thinking_parser", "granite"),
    "harmony": Family("openai_gptoss", "openai"),
    "inkling": Family("inkling", "inkling"),
    "ling3": Family("ling3", "ling3"),
    "minicpmv": Family("minicpmv", None),
    "minimax_m2": Family("minimax_m2", "minimax_m2"),
    "minimax_m3": Family("minimax_m3", "minimax_m3"),
    "nemotron_v3": Family("nemotron_v3", "qwen3_coder"),
    "plamo3": Family("plamo3", "plamo3"),
    "qwen3": Family("qwen3", "qwen3_coder"),
    "seed_oss": Family("seed_oss", "seed_oss"),
    "step3p5": Family("step3p5", "step3p5"),
}
"""By the beginning of a test file's name, where the parser is of no registered class."""
_OF_FOLDERS = {"cohere": Family("cohere_command3", "cohere_command3"),
               "mistral": Family("mistral", "mistral")}  # fmt: skip


def family_of(case: dict[str, Any]) -> Family | None:
    """The family of a test; None if it tests code that belongs to no family."""
    of_file = _of_file(PurePath(case["test"].partition("::")[0]))
    names = case["names"]
    reasoning = next((name for name in names if name in REASONING_FORMATS), None)
    tools = next((name for name in names if name in TOOL_FORMATS), None)
    if of_file is not None:
        reasoning, tools = reasoning or of_file.reasoning, tools or of_file.tools
    if "reasoning" in case["method"]:
        return Family(reasoning, tools) if reasoning else None
    if "tool_calls" in case["method"]:
        return Family(reasoning, tools) if tools else None
    return of_file


def _of_file(path: PurePath) -> Family | None:
    if path.parent.name in _OF_FOLDERS:
        return _OF_FOLDERS[path.parent.name]
    stem = path.stem.removeprefix("test_")
    fitting = [name for name in _OF_FILES if stem == name or stem.startswith(f"{name}_")]
    return _OF_FILES[max(fitting, key=len)] if fitting else None
