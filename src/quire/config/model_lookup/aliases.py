"""Short names of models that the user has chosen (`quire alias`): a JSON file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from quire import env
from quire.errors import ConfigError, quoted
from quire.files import write_text

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}(:[\w.-]{1,63})?")
_MOST = 1000
_MAX_BYTES = 1 << 20


def aliases_file() -> Path:
    """Path of the file with the names."""
    return env.settings_dir() / "aliases.json"


def read_aliases() -> dict[str, str]:
    """The model of each name. Raises ConfigError for a damaged file."""
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
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{path} must hold a JSON object of names and models; delete it")
    return found


def target_of(name: str) -> str | None:
    """The model that an alias stands for; None: the alias does not exist."""
    if "/" in name:
        return None
    try:
        found = read_aliases()
    except ConfigError:
        return None  # `quire alias` reports it
    return found.get(name)


def set_alias(name: str, model: str) -> None:
    """Lets `name` stand for `model`, or for the model of the alias `model`. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"an alias must have letters, digits and ._-, and at most one :, got {quoted(name)}; "
            "try small"
        )
    found = read_aliases()
    if len(found) >= _MOST and name not in found:
        raise ConfigError(f"there are {_MOST} aliases, which is the limit; remove one")
    _write({**found, name: found.get(model, model)})


def remove_alias(name: str) -> None:
    """Raises ConfigError if the alias does not exist."""
    found = read_aliases()
    if name not in found:
        raise ConfigError(f"there is no alias {quoted(name)}; `quire alias` lists them")
    del found[name]
    _write(found)


def _write(found: dict[str, str]) -> None:
    path = aliases_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
