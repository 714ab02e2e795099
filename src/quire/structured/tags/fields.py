"""Reads the fields of a structural tag; errors name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import GrammarError, quoted
from quire.structured import limits
from quire.structured.params import FIELD
from quire.structured.tags.texts import FreeText, TextForm, expression

NAME = "structural_tag"


def text_of(part: Any, name: str) -> str:
    """A field that is a text. Raises GrammarError."""
    value = part.get(name) if isinstance(part, Mapping) else None
    if not isinstance(value, str):
        raise tag_error(f"needs {name}, a text, in {quoted(part)}", value)
    return value


def list_of(part: Mapping[str, Any], name: str) -> list[Any]:
    """A field that is a list with something in it. Raises GrammarError."""
    value = part.get(name)
    if not isinstance(value, list) or not value:
        raise tag_error(f"needs {name}, a list that is not empty", value)
    return value


def tags_of(part: Mapping[str, Any]) -> list[Any]:
    """Its tags, of which there are some, but not too many. Raises GrammarError."""
    tags = list_of(part, "tags")
    limits.check_count(NAME, "tags", len(tags), limits.MAX_TAGS)
    return tags


def flag_of(part: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false; false if it is missing. Raises GrammarError."""
    value = part.get(name, False)
    if not isinstance(value, bool):
        raise tag_error(f"{name} must be true or false", value)
    return value


def count_of(part: Mapping[str, Any], name: str) -> int | None:
    """A field that is a number of times; None if it is missing. Raises GrammarError."""
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise tag_error(f"needs {name}, a number of at least 0", value)
    limits.check_count(NAME, f"as {name} of a repeat", value, limits.MAX_REPEATS)
    return value


def texts_of(part: Mapping[str, Any], name: str) -> list[str]:
    """A field that is a list of texts, which may be missing. Raises GrammarError."""
    if part.get(name) in (None, []):
        return []
    texts = list_of(part, name)
    limits.check_count(NAME, name, len(texts), limits.MAX_EXCLUDED_TEXTS)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise tag_error(f"needs {name}, a list of texts", text)
        most = limits.MAX_PATTERN_BYTES if name.endswith("patterns") else limits.MAX_EXCLUDED_TEXT
        limits.check_count(NAME, f"characters of {name}", len(text), most)
    return texts


def free_text_of(part: Mapping[str, Any]) -> FreeText:
    """Constraints on the free text of a part. Raises GrammarError."""
    return FreeText(
        (*map(expression, texts_of(part, "excludes")), *texts_of(part, "excluded_patterns")),
        (*map(expression, texts_of(part, "not_first")), *texts_of(part, "not_first_patterns")),
        tuple(map(_form, [] if part.get("forms") in (None, []) else list_of(part, "forms"))),
    )


def _form(part: Any) -> TextForm:
    if not isinstance(part, Mapping):
        raise tag_error("needs forms, a list of objects", part)
    return TextForm(tuple(texts_of(part, "patterns")), tuple(texts_of(part, "excluded_patterns")))


def refuse(part: Mapping[str, Any], name: str, *values: object) -> None:
    """Raises GrammarError for a field that asks for something else than these values."""
    value = part.get(name)
    if value not in (None, [], *values):
        raise tag_error(f"has a part with {name}, which does not work; leave it out", value)


def tag_error(what: str, value: object) -> GrammarError:
    """The error about a structural tag."""
    got = "" if value is None else f", got {quoted(value)}"
    return GrammarError(f"{FIELD}.{NAME} {what}{got}", parameter=f"{FIELD}.{NAME}", value=value)
