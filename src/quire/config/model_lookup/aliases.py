"""Short names of models that the user has chosen (`quire alias`): a JSON file.

The value of a name is a model, or an object with `model` and the fields of `AliasSettings`.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from quire import env
from quire.config.model_lookup.settings import AliasSettings
from quire.errors import ConfigError, quoted
from quire.files import write_text
from quire.units import format_bytes

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}(/[A-Za-z0-9][\w.-]{0,63})?(:[\w.-]{1,63})?")
_MOST = 1000
_MAX_BYTES = 1 << 20


def aliases_file() -> Path:
    """Path of the file with the names."""
    return env.settings_dir() / "aliases.json"


def read_aliases() -> dict[str, str]:
    """The model of each name. Raises ConfigError for a damaged file."""
    return {name: one if isinstance(one, str) else one["model"] for name, one in _entries().items()}


def settings_of(name: str) -> AliasSettings:
    """The settings of an alias; the defaults for any other name, and for that of a directory or
    file, which precedes the alias. Raises ConfigError."""
    entry = _entries().get(name, {}) if _NAME.fullmatch(name) else {}
    if isinstance(entry, str) or os.path.exists(name):
        return AliasSettings()
    try:
        return AliasSettings.from_json({k: v for k, v in entry.items() if k != "model"})
    except ConfigError as error:
        raise ConfigError(f"{aliases_file()}: {name}: {error}") from None


def _entries() -> dict[str, Any]:
    path = aliases_file()
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = json.loads(text[:_MAX_BYTES])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(one.get("model") if isinstance(one, dict) else one, str)
        for one in found.values()
    ):
        raise ConfigError(f"{path} must hold a JSON object of names and models; delete it")
    return found


def target_of(name: str) -> str | None:
    """The model that an alias stands for; None: the alias does not exist. Raises ConfigError for a
    damaged file."""
    return read_aliases().get(name) if _NAME.fullmatch(name) else None


def set_alias(name: str, model: str, settings: AliasSettings | None = None) -> None:
    """Lets `name` stand for `model` with these settings; or for the model of the alias `model`,
    with its settings if none are given. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "an alias must have letters, digits and ._-, and at most one / and one : after it, got "
            f"{quoted(name)}; try small"
        )
    repo = name.partition(":")[0].replace("/", "--")
    if "/" in name and (env.hub_cache_dir() / f"models--{repo}").is_dir():
        raise ConfigError(f"{quoted(name)} is a model of the hub's cache; take another name")
    model = _absolute(model)
    found = _entries()
    if len(found) >= _MOST and name not in found:
        raise ConfigError(f"there are {_MOST} aliases, which is the limit; remove one")
    entry = found.get(model, model)
    if settings is not None:
        target = entry if isinstance(entry, str) else entry["model"]
        entry = {"model": target, **given} if (given := settings.to_json()) else target
    _write({**found, name: entry})


def _absolute(model: str) -> str:
    """A path of this directory as one that holds in others, too; another name as it is."""
    place, colon, file = model.rpartition(":")
    for path, rest in ((model, ""), (place, colon + file)):
        if path and os.path.exists(expanded := os.path.expanduser(path)):
            return os.path.abspath(expanded) + rest
    return model


def remove_alias(name: str) -> None:
    """Raises ConfigError if the alias does not exist."""
    found = _entries()
    if name not in found:
        raise ConfigError(f"there is no alias {quoted(name)}; `quire alias` lists them")
    del found[name]
    _write(found)


def _write(found: dict[str, Any]) -> None:
    path = aliases_file()
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"the aliases would take more than {format_bytes(_MAX_BYTES)} in {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
