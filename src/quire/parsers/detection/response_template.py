"""Reads `response_template`, in which a checkpoint declares how its replies are written.

Version 1 of Hugging Face's format. Marks given as text are used. Regular expressions come with the
checkpoint and are never run; those that are plain text around a name are converted to text. All
other declarations are logged and ignored, and the format is detected in other ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import ConfigError
from quire.log import get_logger
from quire.parsers.detection.json_in_tags import JsonInTags, Marks
from quire.parsers.detection.names import DECLARED, FormatChoice
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_format import ToolFormat

logger = get_logger(__name__)

_MAX_MARK_CHARS = 256
_MAX_MARKS = 16
_NAME_GROUP = "(?P<name>"
_SPECIAL = set(".^$*+?{}[]|()")
_ESCAPED = {"n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Declared:
    """The formats that the template declares, as far as they are supported."""

    reasoning: ReasoningTags | None = None
    calls: ToolFormat | None = None


class _UnusualError(Exception):
    """Raised for a declaration that is not supported; the text is the reason."""


def read_response_template(given: object) -> Declared:
    """The declared formats. Never raises: unsupported declarations are logged and become None."""
    if not isinstance(given, Mapping):
        return Declared()
    fields = given.get("fields")
    if given.get("version", 1) != 1 or not isinstance(fields, Mapping):
        _log_ignored("its version must be 1")
        return Declared()
    return Declared(_reasoning(fields.get("thinking")), _calls(fields.get("tool_calls")))


def check_declared(choice: FormatChoice, declared: Declared) -> None:
    """Raises ConfigError if an operator relies on the template, but it declares no such format."""
    asked = (
        ("tool_call_parser", choice.tools, declared.calls, "tool_calls"),
        ("reasoning_parser", choice.reasoning, declared.reasoning, "thinking"),
    )
    for option, name, found, field in asked:
        if name == DECLARED and found is None:
            raise ConfigError(
                f"{option}='{DECLARED}' requires a response_template in the checkpoint's "
                f"tokenizer_config.json, with a supported field {field}; leave the option "
                "out, and the format is detected from the chat template"
            )


def _reasoning(field: Any) -> ReasoningTags | None:
    if field is None:
        return None
    try:
        _check_field(field, "text", {"open", "close"})
        begins, ends = _marks(field, "open"), _marks(field, "close")
    except _UnusualError as reason:
        _log_ignored(f"field thinking: {reason}")
        return None
    return ReasoningTags(begins[0], ends[0], other_begins=begins[1:], other_ends=ends[1:])


def _calls(field: Any) -> ToolFormat | None:
    if field is None:
        return None
    try:
        _check_field(field, "json", {"open", "open_pattern", "close", "transform"})
        name, arguments = _transformed(field.get("transform"))
        end = _only(_marks(field, "close"))
        if "open_pattern" in field:
            if (name, arguments) != ("{name}", "{content}"):
                raise _UnusualError("its transform must be {name} and {content}")
            begin, name_end = _around_name(field["open_pattern"])
            return JsonInTags(Marks("", begin, name_end, end, "", ""))
        keys = _key(name), _key(arguments)
        return JsonInTags(Marks("", _only(_marks(field, "open")), None, end, "", "", *keys))
    except _UnusualError as reason:
        _log_ignored(f"field tool_calls: {reason}")
        return None


def _check_field(field: Any, content: str, known: set[str]) -> None:
    if not isinstance(field, Mapping):
        raise _UnusualError("it must be an object")
    if field.get("content", "text") != content or field.get("content_args"):
        raise _UnusualError(f"its content must be plain {content}")
    others = set(field) - known - {"content", "content_args", "repeats", "optional"}
    if others:
        raise _UnusualError("it has unsupported keys " + ", ".join(sorted(map(repr, others)))[:200])


def _marks(field: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = field.get(key)
    marks = given if isinstance(given, list) else [given]
    if not marks or len(marks) > _MAX_MARKS:
        raise _UnusualError(f"{key} must have 1 to {_MAX_MARKS} texts, not {len(marks)}")
    for mark in marks:
        if not isinstance(mark, str) or not mark.strip() or len(mark) > _MAX_MARK_CHARS:
            raise _UnusualError(f"{key} must be a text of 1 to {_MAX_MARK_CHARS} characters")
    return tuple(marks)


def _only(marks: tuple[str, ...]) -> str:
    if len(marks) > 1:
        raise _UnusualError("calls have several marks")
    return marks[0]


def _transformed(transform: Any) -> tuple[Any, Any]:
    """The templates for the name and the arguments of a call."""
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if not isinstance(function, Mapping):
        raise _UnusualError("its transform must make a function")
    return function.get("name"), function.get("arguments")


def _key(text: Any) -> str:
    """Return `K` of `{content.K}`."""
    key = text.removeprefix("{content.").removesuffix("}") if isinstance(text, str) else ""
    if text != f"{{content.{key}}}" or not key.isidentifier():
        raise _UnusualError("its transform must use two keys of the content")
    return key


def _around_name(pattern: Any) -> tuple[str, str]:
    """The texts before and after the name, for a pattern that is only these texts and the name."""
    if not isinstance(pattern, str) or len(pattern) > _MAX_MARK_CHARS:
        raise _UnusualError(f"open_pattern must be a text of at most {_MAX_MARK_CHARS} characters")
    before, group, rest = pattern.partition(_NAME_GROUP)
    inside, closing, after = rest.partition(")")
    if not group or not closing or "(" in inside:
        raise _UnusualError("open_pattern must have a simple group of the name")
    return _unescaped(before), _unescaped(after)


def _unescaped(pattern: str) -> str:
    chars, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            char = _ESCAPED.get(pattern[at], pattern[at])
            if char.isalnum():
                raise _UnusualError("open_pattern must be a text with a name in it")
        elif char in _SPECIAL or char == "\\":
            raise _UnusualError("open_pattern must be a text with a name in it")
        chars.append(char)
        at += 1
    return "".join(chars)


def _log_ignored(reason: str) -> None:
    logger.info("The checkpoint's response_template is not used: %s", reason)
