"""Where vLLM's parser classes assume that a reply begins, because they do not get the prompt.

A server reads the prompt instead. The rules are those of the classes in `vllm/reasoning` and
`vllm/parser` of vLLM 0.32; `variables` are those of the chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Variables = Mapping[str, Any]
_SWITCHES = ("thinking", "enable_thinking")


class Beginning(Enum):
    """Where a reply begins."""

    AS_WRITTEN = "the reply's own marks tell; an end alone ends reasoning that the prompt opened"
    BY_BEGIN = "reasoning needs a begin mark"
    WITHIN = "within the reasoning"
    OFF = "reasoning is off: marks are text"


@dataclass(frozen=True)
class FamilyRules:
    """The rules of one family. `is_implied`: its models always reason."""

    beginning: Callable[[Variables, bool], Beginning]
    has_empty: bool = False
    """Whether a whole reply's reasoning that is empty is a text, not None."""
    is_over_without: bool = False
    """Whether tokens without marks come after the reasoning."""
    is_always_over: bool = False
    """Whether all tokens do: the class only finds boundaries, and another class parses the
    reply."""
    has_no_content: Callable[[str], bool] | None = None
    """Whether a whole reply's reasoning becomes its content, by the text after the reasoning, where
    the request asks for content. None: it never does."""

    def moves_reasoning(self, request: Any, after: str) -> bool:
        """Whether a whole reply's reasoning becomes its content. `after`: the text after it."""
        return (
            self.has_no_content is not None
            and _asks_for_content(getattr(request, "chat_template_kwargs", None) or {})
            and self.has_no_content(after)
        )


def _asks_for_content(variables: Variables) -> bool:
    return (
        variables.get("enable_thinking") is False or variables.get("force_nonempty_content") is True
    )


def _plain(variables: Variables, is_implied: bool) -> Beginning:
    if any(variables.get(name) is False for name in _SWITCHES):
        return Beginning.OFF
    return Beginning.WITHIN if is_implied else Beginning.AS_WRITTEN


def _on_unless_off(variables: Variables, is_implied: bool) -> Beginning:
    del is_implied
    return _plain(variables, True)


def _off_unless_on(variables: Variables, is_implied: bool) -> Beginning:
    del is_implied
    return Beginning.WITHIN if any(map(variables.get, _SWITCHES)) else Beginning.OFF


def _by_effort(variables: Variables, is_implied: bool) -> Beginning:
    del is_implied
    effort = variables.get("reasoning_effort") or "no_think"
    return Beginning.OFF if effort == "no_think" else Beginning.WITHIN


def _by_effort_or_high(variables: Variables, is_implied: bool) -> Beginning:
    is_off = variables.get("reasoning_effort") == "no_think"
    return Beginning.OFF if is_off else _plain(variables, is_implied)


def _by_mode(variables: Variables, is_implied: bool) -> Beginning:
    del is_implied
    is_on = variables.get("thinking_mode") == "enabled"
    return Beginning.WITHIN if is_on else Beginning.BY_BEGIN


_ANY = FamilyRules(_plain)
_ON = FamilyRules(_on_unless_off)
RULES: dict[str, FamilyRules] = {
    "deepseek_r1": FamilyRules(_plain, has_empty=True),
    "deepseek_v3": FamilyRules(_off_unless_on, has_empty=True),
    "gemma4": FamilyRules(_plain, is_over_without=True),
    "holo2": FamilyRules(_on_unless_off, has_empty=True),
    "granite_thinking_parser": FamilyRules(_on_unless_off, has_no_content=lambda after: not after),
    "hy_v3": FamilyRules(_by_effort, has_empty=True),
    "hy_v4": FamilyRules(_by_effort_or_high),
    "minimax_m3": FamilyRules(_by_mode),
    "nemotron_v3": FamilyRules(_on_unless_off, has_no_content=lambda after: not after.strip()),
    "poolside_v1": FamilyRules(_off_unless_on, has_empty=True),
    "openai_gptoss": FamilyRules(_plain, is_always_over=True),
    "step3": FamilyRules(_plain, has_empty=True),
    **dict.fromkeys(
        (
            "deepseek_v4",
            "deepseek_v41",
            "glm45",
            "glm47",
            "kimi_k2",
            "ling3",
            "mimo",
            "minicpmv",
            "plamo3",
            "qwen3",
            "seed_oss",
        ),
        _ON,
    ),
}
"""By the name of the reasoning format; the others have `rules_of`'s default."""


def rules_of(name: str) -> FamilyRules:
    """Those of the family with this name."""
    return RULES.get(name, _ANY)
