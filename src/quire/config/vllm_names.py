"""vLLM's arguments and server options that Quire does not have: their defaults, and the reasons.

A script written for vLLM often sets defaults explicitly: values without effect are accepted. Any
other value is refused with the reason, never ignored. The tables are files of `quire/vllm/tables`,
which are read when such a name is met.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from quire.errors import ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)

_TABLES = Path(__file__).parents[1] / "vllm" / "tables"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One argument of vLLM that does nothing here."""

    name: str
    default: object
    """vLLM's; of a configuration object, its fields that have a meaning here, as a dict."""
    reason: str
    """Why another value is refused, or why no value has an effect."""
    also: tuple[object, ...] = ()
    """Further values that mean the same here."""
    is_refused: bool = True
    """False: no value has an effect, so that every value is accepted (and logged)."""
    short_flag: str | None = None
    """vLLM's short form of the option."""
    kind: Literal["value", "count", "list", "switch"] = "value"
    """Words that the option takes: any, a number with a suffix, several, or none."""

    def accepts(self, value: object) -> bool:
        """Whether the value changes nothing here; None is vLLM's word for its default."""
        if value is None or not self.is_refused:
            return True
        return any(_is_same(value, allowed) for allowed in (self.default, *self.also))


def _is_same(value: object, allowed: object) -> bool:
    """Equal, and True is not 1; a dict may leave out what has its default."""
    if isinstance(value, Mapping) and isinstance(allowed, Mapping):
        return all(key in allowed and _is_same(value[key], allowed[key]) for key in value)
    if isinstance(allowed, list) and isinstance(value, (list, tuple, set, frozenset)):
        return list(value) == allowed
    if any(one is None or isinstance(one, bool) for one in (value, allowed)):
        return value is allowed
    return isinstance(value, (int, float, str)) and value == allowed


@cache
def vllm_table(name: str) -> dict[str, Any]:
    """The content of a table's file."""
    found: dict[str, Any] = json.loads((_TABLES / f"{name}.json").read_text("utf-8"))
    return found


@cache
def unsupported(
    table: Literal["arguments", "server_options"] = "arguments",
) -> Mapping[str, Unsupported]:
    """All entries of a table, by name.

    `refused` has by reason the values without effect of each name, vLLM's default first;
    `without_effect` has the default alone.
    """
    content = vllm_table(table)
    entries = [
        (name, values, reason, True)
        for reason, names in content["refused"].items()
        for name, values in names.items()
    ] + [
        (name, [default], reason, False)
        for reason, names in content["without_effect"].items()
        for name, default in names.items()
    ]
    return {
        name: Unsupported(
            name,
            values[0],
            reason,
            tuple(values[1:]),
            is_refused,
            content.get("short_flags", {}).get(name),
            _kind(name, values, content),
        )
        for name, values, reason, is_refused in entries
    }


def _kind(
    name: str, values: list[object], content: Mapping[str, Any]
) -> Literal["value", "count", "list", "switch"]:
    """The type of a name: it follows from the name and its values, or is in the table."""
    if (
        name.startswith(("enable_", "disable_"))
        or name in content.get("switches", ())
        or any(isinstance(value, bool) for value in values)
    ):
        return "switch"
    if name in content.get("lists", ()):
        return "list"
    return "count" if name in content.get("counts", ()) else "value"


def check_server_options(given: Mapping[str, object]) -> None:
    """Raises ConfigError for an option of vLLM's server whose value would have an effect."""
    for name, entry in unsupported("server_options").items():
        if name not in given:
            continue
        value, flag = given[name], "--" + name.replace("_", "-")
        if not entry.accepts(value):
            raise ConfigError(f"{flag} {quoted(value)} is not supported: {entry.reason}")
        if not entry.is_refused and value not in (None, entry.default):
            logger.info("%s has no effect here: %s", flag, entry.reason)
