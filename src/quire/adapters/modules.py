"""Reads `--lora-modules` and `--prompt-adapters`: each item is `name=path`; of the first also JSON
with `name` and `path`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quire.errors import ConfigError, quoted

_KEYS = frozenset({"name", "path", "base_model_name", "is_3d_lora_weight"})


@dataclass(frozen=True, slots=True)
class AdapterModule:
    """An adapter that a server offers from its start."""

    name: str
    path: str
    base_model_name: str | None = None
    is_prompt: bool = False
    """Whether it is a prompt adapter."""


MAX_NAME_CHARS = 256
NAMES = f"1 to {MAX_NAME_CHARS} printable characters"


def is_name(name: str) -> bool:
    """Whether an adapter of a server may have this name."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def parse_modules(items: Iterable[Any]) -> list[AdapterModule]:
    """The adapters of `--lora-modules`. An item may also be a JSON list of objects. Raises
    ConfigError for a wrong item and for a name that is given twice."""
    found: list[AdapterModule] = []
    for item in items:
        found += [item] if isinstance(item, AdapterModule) else _parse(item)
    for name, count in Counter(one.name for one in found).items():
        if count > 1:
            raise ConfigError(f"--lora-modules: the name {quoted(name)} must be given once only")
    return found


def parse_prompt_adapters(items: Iterable[str]) -> list[AdapterModule]:
    """The adapters of `--prompt-adapters`, each `name=path`. Raises ConfigError for a wrong item,
    and for a name that is given twice."""
    found: list[AdapterModule] = []
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"--prompt-adapters must be NAME=FOLDER, got {quoted(item)}")
        if not is_name(name):
            raise ConfigError(f"--prompt-adapters: a name must have {NAMES}, got {quoted(name)}")
        if any(one.name == name for one in found):
            raise ConfigError(f"--prompt-adapters: the name {quoted(name)} must be given once only")
        found.append(AdapterModule(name, path, is_prompt=True))
    return found


def _parse(item: Any) -> list[AdapterModule]:
    if not isinstance(item, str):
        return [_module(item)]
    if item and "=" in item and "," not in item and not item.lstrip().startswith(("{", "[")):
        name, _, path = item.partition("=")
        return [_module({"name": name, "path": path})]
    try:
        value = json.loads(item)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"Invalid JSON format for --lora-modules: {quoted(item)}; use name=path"
        ) from None
    return [_module(one) for one in value] if isinstance(value, list) else [_module(value)]


def _module(fields: Any) -> AdapterModule:
    if not isinstance(fields, dict) or not fields.keys() <= _KEYS:
        raise ConfigError(
            f"Invalid fields for --lora-modules: {quoted(fields)}; an item has `name` and `path`, "
            "and may have `base_model_name`"
        )
    name, path, base = fields.get("name"), fields.get("path"), fields.get("base_model_name")
    for key, value in (("name", name), ("path", path)):
        if not isinstance(value, str) or not value:
            raise ConfigError(
                f"Invalid fields for --lora-modules: {key} must be a string that is not empty, got "
                f"{quoted(value)}"
            )
    if not is_name(str(name)):
        raise ConfigError(f"--lora-modules: a name must have {NAMES}, got {quoted(name)}")
    if base is not None and not isinstance(base, str):
        raise ConfigError(
            f"Invalid fields for --lora-modules: base_model_name must be a string, got "
            f"{quoted(base)}"
        )
    return AdapterModule(str(name), str(path), base)
