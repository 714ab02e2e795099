"""vLLM's short ways to write options: parts of a JSON value, and `-O`.

    --compilation-config.mode 3 -cc.cudagraph_mode=NONE     one value, {"mode": 3, ...}
    --x.names+ a,b                                          a list: {"names": ["a", "b"]}
    -O2, -O 2, -O=2                                         --optimization-level 2
    -O.mode=3                                               --compilation-config.mode=3

Called by the parser before it reads the words. Knows which flags take JSON, and no more.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from quire.config.command_line.values import parse_count
from quire.errors import ConfigError

_PART = re.compile(r"(--?[A-Za-z][\w-]*)\.([^=+]+)(\+?)(?:=(.*))?", re.DOTALL)


def without_short_forms(words: Sequence[str]) -> list[str]:
    """The words with each `-O` written out."""
    found: list[str] = []
    for word in words:
        if word.startswith("-O."):
            found.append("--compilation-config" + word.removeprefix("-O"))
        elif word.startswith("-O"):
            level = word.removeprefix("-O").removeprefix("=")
            found += ["--optimization-level", *([level] if level else [])]
        else:
            found.append(word)
    return found


def joined_parts(
    words: Sequence[str], json_flags: Collection[str], repeated: dict[str, None]
) -> list[str]:
    """The words with the parts of each JSON value joined to one option, which comes last.

    Adds to `repeated` the parts that are given again: the last value counts. Raises ConfigError for
    parts of an option that has none, or that is also given whole.
    """
    values: dict[str, dict[str, Any]] = {}
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        match = _PART.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        flag, path, is_list, text = match.groups()
        if flag not in json_flags:
            raise ConfigError(f"{word}: {flag} must be an option with a JSON value to have parts")
        value = _value(_following(remaining, word) if text is None else text, bool(is_list))
        if _put(values.setdefault(flag, {}), path.split("."), value, word):
            repeated[f"{flag}.{path}"] = None
    for flag in values:
        if any(word == flag or word.startswith(f"{flag}=") for word in rest):
            raise ConfigError(f"{flag} is given whole and in parts; give one of the two")
    return rest + [word for flag, value in values.items() for word in (flag, json.dumps(value))]


def _following(words: Iterator[str], word: str) -> str:
    for following in words:
        return following
    raise ConfigError(f"{word}: expected a value")


def _value(text: str, is_list: bool) -> Any:
    if is_list:
        return text.split(",")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_count(text)
    except argparse.ArgumentTypeError:
        return text


def _put(target: dict[str, Any], path: list[str], value: Any, word: str) -> bool:
    """Puts the value where the path says; lists of one path are joined. Whether there was one that
    it replaces."""
    for key in path[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{word}: {key} already has a value")
    old = target.get(path[-1])
    if isinstance(old, list) and isinstance(value, list):
        target[path[-1]] = old + value
        return False
    replaces = path[-1] in target
    target[path[-1]] = value
    return replaces
