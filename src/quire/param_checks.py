"""Validation and normalisation of a request's parameters, one value at a time.

Called by `SamplingParams`, whose checks raise RequestError with the parameter's name and vLLM's
messages, and for base64 in inputs.
"""

from __future__ import annotations

import base64
import numbers
from collections.abc import Iterable
from typing import Any

from quire.errors import RequestError, quoted

_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
LISTS = (list, tuple, set, frozenset)
MAX_EXTRA_VALUES = 1 << 17
MAX_EXTRA_DEPTH = 64


def base64_bytes(text: str) -> bytes:
    """Decode base64, which may be divided into lines. Raises ValueError for other characters."""
    return base64.b64decode(text.encode("ascii").translate(None, b" \t\r\n"), validate=True)


def is_int(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_int(name: str, value: Any, largest: int = _MAX_INT) -> int:
    if not is_int(value):
        if name == "n":
            raise error(name, value, f"n must be an int, but is of type {type(value)}")
        kind = type(value).__name__
        raise error(name, value, f"{name} must be an integer, got {kind} ({quoted(value)})")
    if not _MIN_INT <= value <= largest:
        raise error(name, value, f"{name} must fit in 64 bits, got {quoted(value)}.")
    return int(value)


def as_count(name: str, value: Any) -> int | None:
    """Convert to an integer; True means 1, False means None."""
    if isinstance(value, bool):
        return 1 if value else None
    return None if value is None else as_int(name, value)


def as_float(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise error(name, value, f"{name} must be a number, got {quoted(value)}.")
    try:
        return float(value)
    except OverflowError:
        message = f"{name} must be a finite number, got {quoted(value)}."
        raise error(name, value, message) from None


def has_surrogates(text: str) -> bool:
    """Whether the text has surrogates, which cannot be encoded as UTF-8."""
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)


def error(name: str, value: object, message: str) -> RequestError:
    return RequestError(message, parameter=name, value=value)


def check_rules(params: object, rules: Iterable[tuple[str, bool, str]]) -> None:
    """Raises RequestError for the first rule (field, whether it holds, its words) that fails."""
    for name, holds, rule in rules:
        if not holds:
            value = getattr(params, name)
            raise error(name, value, f"{name} {rule}, got {quoted(value)}.")


def check_num_logprobs(params: object, vocab_size: int, max_logprobs: int) -> None:
    """Raises RequestError for fields of SamplingParams that ask for too many log-probabilities;
    `max_logprobs` -1: the vocabulary size."""
    allowed = vocab_size if max_logprobs == -1 else max_logprobs
    for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        wanted = getattr(params, name)
        wanted = vocab_size if wanted == -1 else wanted
        if wanted is not None and wanted > allowed:
            raise error(
                name,
                wanted,
                f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: "
                f"{allowed}",
            )


def checked_bad_words(given: Any) -> list[str]:
    """Validate words and remove duplicates; an empty list for None."""
    if given is None:
        return []
    if not isinstance(given, LISTS) or not all(isinstance(word, str) for word in given):
        message = f"bad_words must be a list of strings, got {quoted(given)}."
        raise error("bad_words", given, message)
    if not all(given):
        message = f"bad_words cannot contain an empty string. Got bad_words={quoted(given)}"
        raise error("bad_words", given, message)
    if any(has_surrogates(word) for word in given):
        raise error("bad_words", given, f"bad_words must be valid Unicode, got {quoted(given)}.")
    return list(dict.fromkeys(given))


def checked_extra_args(given: Any, name: str = "extra_args") -> dict[Any, Any] | None:
    """Validate a dict with any contents; None for an empty one."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise error(name, given, f"{name} must be a dict, got {quoted(given)}.")
    return given or None


def checked_json(given: Any, name: str, where: str = "") -> dict[str, Any] | None:
    """`checked_extra_args` for JSON values only, which can be sent to another process. `where`:
    appended to an error's sentence, to say why only these are accepted."""
    if checked_extra_args(given, name) is None:
        return None
    count, left = 0, [(given, 1)]
    while left:
        value, depth = left.pop()
        parts = _parts(name, value, where)
        count += 1 + len(parts)
        # A part that occurs several times counts each time: a small object may contain itself.
        if count > MAX_EXTRA_VALUES or depth > MAX_EXTRA_DEPTH:
            raise error(
                name,
                None,
                f"{name} must contain at most {MAX_EXTRA_VALUES} values, {MAX_EXTRA_DEPTH} deep.",
            )
        left += [(part, depth + 1) for part in parts]
    return dict(given)


def _parts(name: str, value: Any, where: str) -> list[Any]:
    """The parts of a JSON value. Raises RequestError for any other value."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise error(name, value, f"{name} integers must be between -2**63 and 2**64 - 1.")
    is_text = isinstance(value, str) and not has_surrogates(value)
    if not is_text and value is not None and not isinstance(value, bool | int | float):
        message = f"{name} must contain only JSON values{where}, got {quoted(value)}."
        raise error(name, value, message)
    return []


def checked_stop(given: Any) -> list[str]:
    """Return stop strings as a list."""
    given = [] if given is None else given
    stop = [given] if isinstance(given, str) else given
    if not isinstance(stop, LISTS) or not all(isinstance(text, str) for text in stop):
        message = f"stop must be a string or a list of strings, got {quoted(given)}."
        raise error("stop", given, message)
    stop = list(stop)
    if any(has_surrogates(text) for text in stop):
        raise error("stop", stop, f"stop must be valid Unicode, got {quoted(stop)}.")
    if not all(stop):
        raise error("stop", stop, "stop cannot contain an empty string.")
    return stop
