"""Which of Quire's formats a recorded case is for."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple

from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS


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
