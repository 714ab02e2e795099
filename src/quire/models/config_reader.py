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
    """Reads one mapping. Missing and null are the same, as in transformers. Changes nothing."""

    def __init__(self, config: Mapping[str, Any], where: str = "config.json") -> None:
        if not isinstance(config, Mapping):
            raise CheckpointError(
                f"{where} holds {_show(config)}, not an object of keys and values"
            )
        self._config = config
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._config.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there and null."""
        return key in self._config and self._config[key] is None

    def is_false(self, key: str) -> bool:
        """Whether the key is there and false."""
        return self._config.get(key) is False

    def size(self, key: str, maximum: int, *, example: int, default: int | None = None) -> int:
        """A whole number from 1 to `maximum`. Required unless there is a default."""
        value = self._get(key, default, example)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self.error(key, value, f"a whole number from 1 to {maximum}", example)
        return value

    def count(self, key: str, maximum: int, *, default: int) -> int:
        """A whole number from 0 to `maximum`."""
        value = self._get(key, default, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
            raise self.error(key, value, f"a whole number from 0 to {maximum}", default)
        return value

    def number(
        self, key: str, low: float, high: float, *, example: float, default: float | None = None
    ) -> float:
        """A finite number from `low` to `high`. Required unless there is a default."""
        value = self._get(key, default, example)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise self.error(key, value, f"a number from {low:g} to {high:g}", example)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._get(key, default, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false", default)
        return value

    def choice(self, key: str, table: Mapping[str, _T], *, default: str | None = None) -> _T:
        """The entry of `table` for the key's text. Raises UnsupportedModelError if it has none."""
        value = self._get(key, default, next(iter(table)))
        if not isinstance(value, str):
            raise self.error(key, value, "a text", next(iter(table)))
        if value not in table:
            raise UnsupportedModelError(
                f"{self.where}: {key} {value!r} is not supported; known are {', '.join(table)}"
            )
        return table[value]

    def section(self, key: str) -> ConfigReader | None:
        """The object under the key; None where it is missing, null or empty."""
        value = self._config.get(key)
        if value is None or value == {}:
            return None
        return ConfigReader(value, f"{self.where}: {key}")

    def texts(self, key: str, length: int) -> list[str] | None:
        """A list of exactly `length` texts; None where it is missing."""
        value = self._config.get(key)
        if value is None:
            return None
        is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if not is_list or len(value) != length:
            raise CheckpointError(
                f"{self.where}: {key} must be a list of {length} texts, one a layer"
            )
        return list(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty if the key is missing."""
        value = self._config.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < MAX_VOCAB:
                raise self.error(key, item, "a token id", 2)
        return tuple(items)

    def error(self, key: str, value: object, wanted: str, example: object) -> CheckpointError:
        """The error about a key's value; the caller raises it."""
        return CheckpointError(
            f"{self.where}: {key} is {_show(value)}; "
            f"it must be {wanted}, for example {_json(example)}"
        )

    def _get(self, key: str, default: object, example: object) -> Any:
        value = self._config.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(
                f'{self.where} lacks {key}; add it, for example "{key}": {_json(example)}'
            )
        return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _json(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else f"{value}"
