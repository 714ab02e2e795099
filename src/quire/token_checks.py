"""Validation of the tokens that a request names: those that it allows, biases, forbids, reports, or
gives as its output.

Called by parameters and front ends for the fields that a request has. Checks raise RequestError
with the parameter's name and vLLM's messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from quire.errors import quoted
from quire.param_checks import LISTS, as_float, error, is_int

FIELDS = (
    "allowed_token_ids", "stop_token_ids", "logit_bias", "logprob_token_ids",
    "trace_decode_token_ids",
)  # fmt: skip
"""Fields of `SamplingParams` with ids of tokens."""
MAX_BIAS = 100.0
MAX_LOGPROB_TOKEN_IDS = 128
_NOT_IN_TRACES = (
    "prompt_logprobs", "structured_outputs", "repetition_detection", "thinking_token_budget",
    "bad_words",
)  # fmt: skip
"""Fields that cannot be combined with `trace_decode_token_ids`, as in vLLM."""


class TextEncoder(Protocol):
    """The tokenizer method that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""


def checked_logit_bias(given: Any) -> dict[int, float] | None:
    """Convert token ids to integers and limit values to [-100, 100]; None for an empty dict."""
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


def checked_allowed_token_ids(given: Any) -> list[int]:
    """Validate token ids and remove duplicates."""
    ids = _token_ids("allowed_token_ids", given)
    if not ids:
        raise error("allowed_token_ids", given, "allowed_token_ids is not None and empty!")
    return ids


def checked_logprob_token_ids(given: Any, logprobs: int | None) -> list[int] | None:
    """Validate token ids and remove duplicates; None for an empty list."""
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


def checked_trace(params: Any) -> list[int]:
    """Validate `trace_decode_token_ids`. Raises RequestError if other fields conflict with it."""
    name, given = "trace_decode_token_ids", params.trace_decode_token_ids
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


def check_vocabulary(params: Any, vocab_size: int) -> None:
    """Raises RequestError for one of the `FIELDS` that has tokens outside of the vocabulary."""
    outside = outside_vocabulary(params.allowed_token_ids or (), vocab_size)
    if outside:
        raise error(
            "allowed_token_ids",
            outside,
            f"allowed_token_ids contains out-of-vocab token id! {quoted(outside)} are not below "
            f"the vocabulary size {vocab_size}",
        )
    for name in FIELDS[1:]:
        outside = outside_vocabulary(getattr(params, name) or (), vocab_size)
        if outside:
            raise error(
                name,
                outside,
                f"token_id(s) {quoted(outside)} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {vocab_size}",
            )


def outside_vocabulary(token_ids: Iterable[int], vocab_size: int) -> list[int]:
    """The token ids that are not in the vocabulary."""
    return [one for one in token_ids if not 0 <= one < vocab_size]


_OF_THE_MODEL = (
    " The model's generation_config.json forbids tokens too; the engine's generation_config='vllm' "
    "ignores it."
)


def check_bans(params: Any, banned_token_ids: list[int], vocab_size: int) -> None:
    """Raises RequestError if bad words contain tokens outside of the vocabulary, or if no token, or
    none of `allowed_token_ids`, can be the first one. The bad words of `params` must be tokens
    already; `banned_token_ids` are the tokens that `min_tokens` forbids."""
    words, never = params.bad_words_token_ids or [], params.never_generated
    outside = outside_vocabulary((token_id for word in words for token_id in word), vocab_size)
    if outside:
        raise error(
            "bad_words",
            params.bad_words,
            f"The model vocabulary size is {vocab_size}, but the following tokens were "
            f"specified as bad: {outside}.",
        )
    of_the_model = never.at_first(0)
    banned = {*banned_token_ids, *of_the_model, *(word[0] for word in words if len(word) == 1)}
    if params.allowed_token_ids is None:
        if len(banned) - len(outside_vocabulary(banned, vocab_size)) >= vocab_size:
            raise error(
                "min_tokens",
                params.min_tokens,
                f"min_tokens={params.min_tokens} forbids the stop_token_ids, which with bad_words "
                f"are all {vocab_size} tokens; set min_tokens to 0.",
            )
    elif banned.issuperset(params.allowed_token_ids):
        raise error(
            "allowed_token_ids",
            params.allowed_token_ids,
            "allowed_token_ids must contain a token that min_tokens and bad_words do not forbid, "
            f"got {quoted(params.allowed_token_ids)}." + (_OF_THE_MODEL if of_the_model else ""),
        )
