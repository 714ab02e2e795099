"""`ConfigReader`: typed, range-checked access to a checkpoint's config.json.

config.json is untrusted: a model family reads every value through this class. An invalid value
raises CheckpointError that names the key, the value and one that works.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from quire.errors import CheckpointError, UnsupportedModelError

_T = TypeVar("_T")

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_HIDDEN = 1 << 17
MAX_FEED_FORWARD = 1 << 20
MAX_VOCAB = 1 << 24
MAX_POSITIONS = 1 << 28


class ConfigReader:
    """Reads one mapping without changing it. A null value counts as missing, as in transformers."""

    def __init__(self, config: Mapping[str, Any], where: str = "config.json") -> None:
        if not isinstance(config, Mapping):
            raise CheckpointError(
                f"{where} must be an object of keys and values, not {_show(config)}"
            )
        self._config = config
        self._spellings: Mapping[str, str] = {}
        self._defaults: Mapping[str, Any] = {}
        self.where = where
        self.used: set[str] = set()
        """Keys that were read and exist, as spelled in config.json."""

    def translated(self, spellings: Mapping[str, str], defaults: Mapping[str, Any]) -> ConfigReader:
        """Return a reader of the same values with other names for keys: `spellings` maps a key to
        its name in config.json. `defaults` has values for keys that config.json omits. Both are
        added to those of this reader."""
        reader = ConfigReader(self._config, self.where)
        reader._spellings = {**self._spellings, **spellings}
        reader._defaults = {**self._defaults, **defaults}
        reader.used = self.used
        return reader

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self._find(key) is not None

    def raw(self, key: str) -> Any:
        """The value, unchecked; None if the key is missing. For keys with values of several
        forms."""
        return self._find(key)

    def is_false(self, key: str) -> bool:
        """Whether the key is present and false."""
        return self._find(key) is False

    def size(self, key: str, maximum: int, *, example: int, default: int | None = None) -> int:
        """Return a whole number from 1 to `maximum`. Required unless there is a default."""
        value = self._get(key, default, example)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self.error(key, value, f"a whole number from 1 to {maximum}", example)
        return value

    def sizes(
        self, key: str, length: int, maximum: int, *, example: int, default: int | None = None
    ) -> tuple[int, ...]:
        """Return `length` whole numbers from 1 to `maximum`: a list, or one number for all."""
        value = self._find(key)
        if not isinstance(value, list | tuple):
            return (self.size(key, maximum, example=example, default=default),) * length
        found = self.indices(key, maximum)
        if len(found) != length or 0 in found:
            wanted = f"a whole number from 1 to {maximum}, or a list of {length}"
            raise self.error(key, value, wanted, example)
        return found

    def count(self, key: str, maximum: int, *, default: int) -> int:
        """Return a whole number from 0 to `maximum`."""
        value = self._get(key, default, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
            raise self.error(key, value, f"a whole number from 0 to {maximum}", default)
        return value

    def number(
        self, key: str, low: float, high: float, *, example: float, default: float | None = None
    ) -> float:
        """Return a finite number from `low` to `high`. Required unless there is a default."""
        value = self._get(key, default, example)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            raise self.error(key, value, f"a number from {low:g} to {high:g}", example)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false", default)
        return value

    def choice(self, key: str, table: Mapping[str, _T], *, default: str | None = None) -> _T:
        """Return the entry of `table` for the key's string. Raises UnsupportedModelError if there
        is none."""
        value = self._get(key, default, next(iter(table)))
        if not isinstance(value, str):
            raise self.error(key, value, "a string", next(iter(table)))
        if value not in table:
            raise UnsupportedModelError(
                f"{self.where}: {key} {value!r} is not supported; supported are {', '.join(table)}"
            )
        return table[value]

    def section(self, key: str) -> ConfigReader | None:
        """Return a reader of the object under the key; None if it is missing, null or empty."""
        value = self._find(key)
        if value is None or value == {}:
            return None
        return ConfigReader(value, f"{self.where}: {key}")

    def texts(self, key: str, length: int) -> list[str] | None:
        """Return a list of exactly `length` strings; None if the key is missing."""
        value = self._find(key)
        if value is None:
            return None
        is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if not is_list or len(value) != length:
            raise CheckpointError(
                f"{self.where}: {key} must be a list of {length} strings, one per layer"
            )
        return list(value)

    def numbers(
        self, key: str, length: int, low: float, high: float, *, example: float
    ) -> list[float] | None:
        """Return a list of `length` finite numbers from `low` to `high`; None if the key is
        missing."""
        value = self._find(key)
        if value is None:
            return None
        wanted = f"a list of {length} numbers from {low:g} to {high:g}"
        if not isinstance(value, list | tuple) or len(value) != length:
            raise self.error(key, value, wanted, [example] * min(length, 2))
        for item in value:
            is_number = isinstance(item, int | float) and not isinstance(item, bool)
            if not is_number or not low <= item <= high:
                raise self.error(key, item, wanted, [example] * min(length, 2))
        return [float(item) for item in value]

    def limits(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Return a list of two numbers; the second may be infinite, also spelled as in
        transformers' files."""
        value = self._find(key)
        if value is None:
            return default
        found = []
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Mapping):
                item = item.get("__float__")
            if item == "Infinity":
                item = math.inf
            is_number = isinstance(item, int | float) and not isinstance(item, bool)
            try:
                found.append(float(item) if is_number else math.nan)
            except OverflowError:  # a whole number beyond all floats
                found.append(math.nan)
            if math.isnan(found[-1]):
                raise self.error(key, value, "a list of two numbers", [*default])
        if len(found) != 2:
            raise self.error(key, value, "a list of two numbers", [*default])
        return found[0], found[1]

    def names(self, key: str) -> list[str]:
        """Return a list of strings of any length; empty if the key is missing."""
        value = self._find(key)
        if value is None:
            return []
        is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if not is_list or len(value) > MAX_LAYERS:
            raise self.error(key, value, "a list of strings, one per layer", ["attention"])
        return list(value)

    def text(self, key: str) -> str | None:
        """Return a string; None if the key is missing or has another type."""
        value = self._find(key)
        return value if isinstance(value, str) else None

    def indices(self, key: str, maximum: int) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to `maximum`; empty if the key is missing."""
        value = self._find(key)
        if value is None:
            return ()
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= maximum:
                raise self.error(key, value, f"a list of whole numbers from 0 to {maximum}", [0])
        if not isinstance(value, list | tuple):
            raise self.error(key, value, "a list of whole numbers", [value])
        return tuple(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return a token id or several as a tuple; empty if the key is missing."""
        value = self._find(key)
        if value is None:
            return ()
        items = value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < MAX_VOCAB:
                raise self.error(key, item, "a token id", 2)
        return tuple(items)

    def error(self, key: str, value: object, wanted: str, example: object) -> CheckpointError:
        """Return the error about a key's value, for the caller to raise."""
        return CheckpointError(
            f"{self.where}: {self._spelled(key)} is {_show(value)}; "
            f"it must be {wanted}, for example {_json(example)}"
        )

    def _get(self, key: str, default: object, example: object) -> Any:
        value = self._find(key)
        if value is None:
            value = default
        if value is None:
            name = self._spelled(key)
            raise CheckpointError(
                f'{self.where} must have {name}; add it, for example "{name}": {_json(example)}'
            )
        return value

    def _spelled(self, key: str) -> str:
        """Return the key's name in config.json: the spelling of its family, or the usual one."""
        name = self._spellings.get(key, key)
        return key if name not in self._config and key in self._config else name

    def _find(self, key: str) -> Any:
        name = self._spelled(key)
        if name not in self._config:
            return self._defaults.get(key)
        self.used.add(name)
        return self._config[name]


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _json(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else f"{value}"
