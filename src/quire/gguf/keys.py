"""`Keys`: typed access to the metadata of a GGUF file, with errors that name file and key."""

from __future__ import annotations

import math
import struct
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.container import GgufHeader, GgufTensor


class Keys:
    """The metadata of one model; `{arch}.` in a key stands for its architecture, or for another
    prefix."""

    def __init__(self, headers: list[GgufHeader], prefix: str = "") -> None:
        self.path = headers[0].path
        self.headers = headers
        self.architecture = prefix or headers[0].architecture
        self._values = headers[0].metadata

    def value(self, key: str) -> Any:
        """The value as it is; None where there is none."""
        return self._values.get(self._full(key))

    def names(self, prefix: str) -> list[str]:
        """The keys that begin so."""
        return [key for key in self._values if key.startswith(prefix)]

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; of a list with one for each layer, the one that they all are."""
        value = self.value(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            raise UnsupportedModelError(
                f"{self.path}: {self._full(key)} differs between layers, which is not supported"
            )
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "a whole number")
        return value

    def largest(self, key: str, default: int | None = None) -> int:
        """A whole number; of a list with one for each layer, the largest."""
        value = self.value(key)
        if isinstance(value, list) and value:
            return max(self.wholes(key, len(value)))
        return self.whole(key, default)

    def wholes(self, key: str, length: int) -> list[int]:
        """A whole number for each of `length` layers; files may have one for all of them."""
        if not isinstance(self.value(key), list):
            return [self.whole(key)] * length
        return self.numbers(key, int, length) or []

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; one of 32 bits becomes the shortest decimal that rounds to it."""
        value = self.value(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "a number")
        if not math.isfinite(value):
            raise self.error(key, "a finite number")
        return _shortest(float(value))

    def text(self, key: str) -> str | None:
        """A text; None where there is none."""
        value = self.value(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "a text")
        return value

    def flag(self, key: str) -> bool | None:
        """true or false; None where there is none."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def texts(self, key: str) -> list[str] | None:
        """A list of texts; None where there is none."""
        value = self.value(key)
        if value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            return value
        raise self.error(key, "a list of texts")

    def numbers(self, key: str, kind: type[int] | type[float], length: int) -> list[Any] | None:
        """A list of `length` numbers; None where there is none."""
        value = self.value(key)
        if value is None:
            return None
        kinds = kind if kind is int else (int, float)
        if not isinstance(value, list) or not all(
            isinstance(item, kinds) and not isinstance(item, bool) for item in value
        ):
            raise self.error(key, "a list of numbers")
        if len(value) != length:
            raise self.error(key, f"a list of {length} numbers; it has {len(value)}")
        return value

    def token_of(self, role: str, tokens: list[str]) -> str | None:
        """The token of a role, such as "bos"; None if the file names none."""
        token_id = self.role_id(role)
        if token_id is None:
            return None
        if not 0 <= token_id < len(tokens):
            raise self.error(f"tokenizer.ggml.{role}_token_id", f"an id below {len(tokens)}")
        return tokens[token_id]

    def role_id(self, role: str) -> int | None:
        """The id of a role's token, which may be too large; None if the file names none, or has -1,
        as early conversions wrote for none."""
        key = f"tokenizer.ggml.{role}_token_id"
        if isinstance(self.value(key), list):
            raise self.error(key, "a whole number")
        return None if self.value(key) in (None, -1, 2**32 - 1) else self.whole(key)

    def token_ids(self, name: str) -> list[int]:
        """The list of ids under a key of the tokenizer; empty where there is none."""
        key = f"tokenizer.ggml.{name}"
        found = self.value(key)
        if not isinstance(found, list | None):
            raise self.error(key, "a list of token ids")
        return self.numbers(key, int, len(found or ())) or []

    def tensor(self, name: str) -> GgufTensor | None:
        """The tensor of that name in any of the files."""
        found = (header.tensors.get(name) for header in self.headers)
        return next((tensor for tensor in found if tensor is not None), None)

    def error(self, key: str, wanted: str) -> CheckpointError:
        """The error about a key's value; the caller raises it."""
        return CheckpointError(
            f"{self.path}: {self._full(key)} is {quoted(self.value(key))}; it must be {wanted}"
        )

    def _full(self, key: str) -> str:
        return key.replace("{arch}", self.architecture)


def _shortest(value: float) -> float:
    """The decimal with the fewest digits that is the same number in 32 bits."""
    if not abs(value) < 3e38 or struct.unpack("f", struct.pack("f", value))[0] != value:
        return value
    for digits in range(1, 10):
        decimal = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", decimal))[0] == value:
            return decimal
    return value
