"""Validation and normalisation of a request's parameters, one value at a time.

Called by `SamplingParams`, whose checks raise RequestError with the parameter's name and vLLM's
messages, and for base64 in inputs.
"""

from __future__ import annotations

import base64
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from quire.errors import RequestError, quoted

_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
LISTS = (list, tuple, set, frozenset)
MAX_BIAS = 100.0
MAX_EXTRA_VALUES = 1 << 17
MAX_EXTRA_DEPTH = 64
MAX_LOGPROB_TOKEN_IDS = 128
_NOT_IN_TRACES = (
    "prompt_logprobs", "structured_outputs", "repetition_detection", "thinking_token_budget",
    "bad_words",
)  # fmt: skip
"""Fields that cannot be combined with `trace_decode_token_ids`, as in vLLM."""


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


class TextEncoder(Protocol):
    """The tokenizer method that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""


def checked_logit_bias(given: Any) -> dict[int, float] | None:
    """Convert token ids to integers and limit values to [-100, 100]; None for an empty dict."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        message = f"logit_bias must be a dict from token ids to numbers, got {quoted(given)}."
        raise error("logit_bias", given, message)
    ids = {key: _token_id(key) for key in given}
    invalid = [key for key, token_id in ids.items() if token_id is None]
    if invalid:
        raise error(
            "logit_bias",
            invalid,
            "logit_bias contains key(s) that cannot be converted to integer token IDs: "
            f"{quoted(invalid)}",
        )
    found: dict[int, float] = {}
    for key, value in given.items():
        bias = as_float("logit_bias", value)
        if math.isnan(bias):
            raise error("logit_bias", value, f"logit_bias must not be NaN, got it for {key}.")
        found[ids[key]] = min(MAX_BIAS, max(-MAX_BIAS, bias))  # type: ignore[index]
    return found or None


def checked_allowed_token_ids(given: Any) -> list[int] | None:
    """Validate token ids and remove duplicates."""
    if given is None:
        return None
    ids = _token_ids("allowed_token_ids", given)
    if not ids:
        raise error("allowed_token_ids", given, "allowed_token_ids is not None and empty!")
    return ids


def checked_logprob_token_ids(given: Any, logprobs: int | None) -> list[int] | None:
    """Validate token ids and remove duplicates; None for an empty list."""
    if given is None:
        return None
    ids = _token_ids("logprob_token_ids", given)
    if len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise error(
            "logprob_token_ids",
            len(ids),
            f"Requested logprob_token_ids of length {len(ids)}, "
            f"which is greater than max allowed: {MAX_LOGPROB_TOKEN_IDS}",
        )
    if logprobs is not None and logprobs != len(ids):
        raise error(
            "logprob_token_ids",
            len(ids),
            "When both logprobs and logprob_token_ids are set, logprobs must equal "
            f"len(logprob_token_ids). Got logprobs={logprobs}, len(logprob_token_ids)={len(ids)}.",
        )
    return ids or None


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


def bad_word_token_ids(words: list[str], tokenizer: TextEncoder, most: int) -> list[list[int]]:
    """The tokens of each word at the start of a text, and of the word after a space if these have
    another first token and the same number. Raises RequestError for more than `most` token
    sequences."""
    found: list[list[int]] = []
    for word in words:
        bare = word.lstrip()
        ids = tokenizer.encode(bare, add_special_tokens=False) if bare else []
        if not ids:
            raise error(
                "bad_words", words, "bad_words entries must tokenize to at least one token."
            )
        found.append(ids)
        if len(found) <= most:
            spaced = tokenizer.encode(f" {bare}", add_special_tokens=False)
            if spaced and spaced[0] != ids[0] and len(spaced) == len(ids):
                found.append(spaced)
        if len(found) > most:
            raise error(
                "bad_words",
                words,
                f"Too many bad words after tokenization: {len(found)}. The max number is {most}.",
            )
    return found


def checked_trace(params: Any) -> list[int] | None:
    """Validate `trace_decode_token_ids`. Raises RequestError if other fields conflict with it."""
    name, given = "trace_decode_token_ids", params.trace_decode_token_ids
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not given:
        raise error(name, given, f"{name} must be a non-empty list, got {quoted(given)}.")
    if not all(is_int(token_id) and token_id >= 0 for token_id in given):
        message = f"{name} must contain non-negative integers, got {quoted(given)}."
        raise error(name, given, message)
    if params.n != 1:
        raise error("n", params.n, f"{name} requires n=1, got n={params.n}.")
    for other in _NOT_IN_TRACES:
        value = getattr(params, other)
        if value is not None and value != []:
            raise error(other, value, f"{name} is not supported with {other}; leave one out.")
    return [int(token_id) for token_id in given]


def _token_ids(name: str, given: Any) -> list[int]:
    if not isinstance(given, LISTS):
        raise error(name, given, f"{name} must be a list of token ids, got {quoted(given)}.")
    if not all(is_int(token_id) for token_id in given):
        message = f"{name} must contain only integers, got {quoted(given)}."
        raise error(name, given, message)
    return list(dict.fromkeys(int(token_id) for token_id in given))


def _token_id(key: object) -> int | None:
    """Convert a key of `logit_bias` to a token id: JSON keys are always strings."""
    if is_int(key):
        return int(key)  # type: ignore[call-overload, no-any-return]
    try:
        return int(key) if isinstance(key, str) else None
    except ValueError:
        return None


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


def check_for_model(params: Any, vocab_size: int, max_logprobs: int) -> None:
    """Raises RequestError for fields of SamplingParams with tokens outside of the vocabulary, or
    with too many log-probabilities; `max_logprobs` -1: the vocabulary size."""
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
    outside = outside_vocabulary(params.allowed_token_ids, vocab_size)
    if outside:
        raise error(
            "allowed_token_ids",
            outside,
            f"allowed_token_ids contains out-of-vocab token id! {quoted(outside)} are not below "
            f"the vocabulary size {vocab_size}",
        )
    for name in ("stop_token_ids", "logit_bias", "logprob_token_ids", "trace_decode_token_ids"):
        outside = outside_vocabulary(getattr(params, name), vocab_size)
        if outside:
            raise error(
                name,
                outside,
                f"token_id(s) {quoted(outside)} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {vocab_size}",
            )


def outside_vocabulary(token_ids: Iterable[int] | None, vocab_size: int) -> list[int]:
    """The token ids that are not in the vocabulary."""
    return [one for one in token_ids or () if not 0 <= one < vocab_size]
