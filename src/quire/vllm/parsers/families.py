"""Differences of vLLM's parser classes from the server, family by family: the begin of a reply, and
the rest that they leave of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from quire.chat.job import VARIABLES
from quire.parsers.events import Event, Reply
from quire.parsers.parser import ReplyParser
from quire.parsers.reader import Parse
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import TOOL_FORMATS
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part

_OF_FAMILIES = {
    "glm45": "glm45",
    "granite_thinking_parser": "qwen3_coder",
    "minicpmv": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    "qwen3": "qwen3_coder",
}
"""The format of the family's calls, where it has another name than that of the reasoning."""


class CallsAsText(ToolFormat):
    """Finds the begin of calls, and reads nothing of them."""

    has_grammar = False

    def __init__(self, markers: tuple[str, ...]) -> None:
        self.markers = markers

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Ends the reasoning, and passes the marker on as part of the answer."""
        yield from ()
        reply.end_reasoning(keeps_space=True)
        reply.content(reply.marker)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Any text."""
        return {"type": "any_text"}


def calls_as_text(name: str, tags: ReasoningTags) -> CallsAsText | None:
    """The calls of the family with this reasoning format; None if calls do not end its
    reasoning."""
    format = TOOL_FORMATS.get(_OF_FAMILIES.get(name, name))
    if format is None or not tags.ends_at_call:
        return None
    markers = format().markers_in_reasoning()
    return CallsAsText(markers) if markers else None


class Stream:
    """The parser of one reply. A piece that does not follow what was read begins another."""

    def __init__(self) -> None:
        self.parser: ReplyParser | None = None
        self._text = ""

    def feed(
        self, make: Callable[[], ReplyParser], previous: str | None, current: str, delta: str
    ) -> tuple[list[Event], list[Event]]:
        """Events for `delta` after `previous`, plus events of `previous` not yet emitted.

        Without a text before it, `delta` begins a reply. A text that was not given to this object
        is read first.

        Some callers always pass an empty `previous`: then `current` counts.
        """
        is_new = not previous and current == delta
        is_other = bool(previous) and previous != self._text and current == f"{previous}{delta}"
        before: list[Event] = []
        if self.parser is None or is_new or is_other:
            self.parser, self._text = make(), ""
            if is_other and previous:
                self._text = previous
                before = self.parser.feed(previous)
        self._text += delta
        return self.parser.feed(delta), before


Variables = Mapping[str, Any]
_SWITCHES = ("thinking", "enable_thinking")


class Beginning(Enum):
    """The part of a reply with which it begins."""

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
            and _asks_for_content(getattr(request, VARIABLES, None) or {})
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
    return _plain(variables, True)


def _off_unless_on(variables: Variables, is_implied: bool) -> Beginning:
    return Beginning.WITHIN if any(map(variables.get, _SWITCHES)) else Beginning.OFF


def _by_effort(variables: Variables, is_implied: bool) -> Beginning:
    effort = variables.get("reasoning_effort") or "no_think"
    return Beginning.OFF if effort == "no_think" else Beginning.WITHIN


def _by_effort_or_high(variables: Variables, is_implied: bool) -> Beginning:
    is_off = variables.get("reasoning_effort") == "no_think"
    return Beginning.OFF if is_off else _plain(variables, is_implied)


def _by_mode(variables: Variables, is_implied: bool) -> Beginning:
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
    """Rules of the family with this name."""
    return RULES.get(name, _ANY)


@dataclass(frozen=True)
class WholeRules:
    """The rules of one family."""

    content: Literal["all", "before", "none"] = "all"
    """Which text besides calls is content: all of it, without the white space around calls; as it
    is before the first call; none."""
    is_strict: bool = False
    """Whether a call that is cut short, or whose arguments are not JSON, makes the whole reply
    content."""
    is_checked: bool = False
    """Whether a call of a tool that is not offered, or without an argument that is required, does
    too."""

    def content_of(self, text: str, content: str, tools: ToolFormat | None) -> str:
        """The content of a reply that has calls; `content`: all of it."""
        if self.content == "none":
            return ""
        places = [at for mark in (tools.markers if tools else ()) if (at := text.find(mark)) >= 0]
        if self.content == "all" or not places:
            return content
        before = text[: min(places)]
        return before if before.strip() else ""

    def refuses(self, calls: Sequence[Any], num_ended: int, tools: Schemas) -> bool:
        """Whether these calls make the reply content. `num_ended`: how many are complete; `tools`:
        those that are offered."""
        if not self.is_strict:
            return False
        return num_ended < len(calls) or not all(
            self._is_right(call.name, call.arguments, tools) for call in calls
        )

    def _is_right(self, name: str, arguments: str, tools: Schemas) -> bool:
        try:
            given = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
        if not self.is_checked:
            return True
        required = tools[name].get("required", ()) if name in tools else None
        return required is not None and isinstance(given, dict) and {*required} <= given.keys()


_ANY_NAME = WholeRules()
_BEFORE = WholeRules("before", is_strict=True)
_RULES: dict[str, WholeRules] = {
    **dict.fromkeys(
        (
            "deepseek_v31",
            "granite-20b-fc",
            "hermes",
            "hunyuan_a13b",
            "hy_v3",
            "hy_v4",
            "jamba",
            "longcat",
        ),
        _BEFORE,
    ),
    "deepseek_v3": WholeRules(is_strict=True),
    "functiongemma": WholeRules(is_strict=True),
    "gigachat3": WholeRules("before"),
    "kimi_k2": WholeRules("before"),
    "llama3_json": WholeRules("none", is_strict=True),
    "llama4_json": WholeRules("none", is_strict=True),
    "dots": WholeRules(is_strict=True, is_checked=True),
    "minicpm5": WholeRules("none", is_strict=True, is_checked=True),
}


def whole_rules(name: str) -> WholeRules:
    """Rules of the family whose calls have this name."""
    return _RULES.get(name, _ANY_NAME)
