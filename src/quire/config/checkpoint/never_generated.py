"""Tokens that a model's generation_config.json forbids, and its settings that have no effect here.

Called when an engine is configured. Source of keys and neutral values: transformers,
`GenerationConfig` and its logits processors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from quire.errors import ConfigError, quoted
from quire.forbidden_tokens import ForbiddenTokens

BANNING_KEYS = ("suppress_tokens", "bad_words_ids", "begin_suppress_tokens", "min_new_tokens")
WHISPER_KEYS = ("suppress_tokens", "begin_suppress_tokens")
"""Keys that transformers applies to what Whisper writes after a language and a task."""
_NO_END = 1 << 31
_MAX_TOKENS = 1 << 16
"""Every request carries them."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "min_length": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "force_words_ids": (None, []),
    "constraints": (None, []),
    "sequence_bias": (None, {}, []),
    "exponential_decay_length_penalty": (None,),
    "typical_p": (None, 1),
    "top_h": (None,),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "guidance_scale": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "num_beams": (None, 1),
    "stop_strings": (None, []),
    "watermarking_config": (None,),
}
RULE_KEYS = (*BANNING_KEYS, *_NEUTRAL)
"""Keys that change which tokens transformers chooses, besides those of `SamplingParams`."""


def without_effect(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change what transformers generates, and nothing here."""
    return {
        key: values[key] for key, same in _NEUTRAL.items() if values.get(key, same[0]) not in same
    }


def never_generated(
    values: Mapping[str, Any], source: str, eos_token_ids: Collection[int], vocab_size: int
) -> ForbiddenTokens:
    """The tokens of `suppress_tokens` and `bad_words_ids`; those of `begin_suppress_tokens`, which
    are not the first of a reply; and end tokens before `min_new_tokens`. Ids that are not in the
    vocabulary need no ban, and a word that is an end token has none, as in transformers. `source`
    names the file in messages. Raises ConfigError for values of other types, and for too many."""
    singles = _ids(values.get("suppress_tokens"), "suppress_tokens", source)
    words = values.get("bad_words_ids")
    if not isinstance(words, list | None):
        raise _error(source, "bad_words_ids", "a list of lists of token ids", words)
    sequences = [_ids(word, "bad_words_ids", source) for word in words or ()]
    if [] in sequences:
        raise _error(source, "bad_words_ids", "a list of lists with an id or more each", words)
    ends = [[token_id] for token_id in eos_token_ids]
    found = [[token_id] for token_id in singles] + [one for one in sequences if one not in ends]
    found = [one for one in found if max(one) < vocab_size]
    first = _first(values, source, eos_token_ids, vocab_size)
    count = sum(map(len, found)) + sum(len(ids) for _, ids in first)
    if count > _MAX_TOKENS:
        raise ConfigError(
            f"{source} forbids {count} tokens; at most {_MAX_TOKENS} are read. {_HOW_TO_IGNORE}"
        )
    tokens = ForbiddenTokens(found, first)
    if len(tokens.at_first(0)) == vocab_size:
        raise ConfigError(f"{source} forbids all {vocab_size} tokens. {_HOW_TO_IGNORE}")
    return tokens


def _first(
    values: Mapping[str, Any], source: str, eos_token_ids: Collection[int], vocab_size: int
) -> list[tuple[int, list[int]]]:
    least = values.get("min_new_tokens")
    if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 0):
        raise _error(source, "min_new_tokens", "a number of tokens, such as 5", least)
    key = "begin_suppress_tokens"
    bans = [(1, _ids(values.get(key), key, source)), (min(least or 0, _NO_END), eos_token_ids)]
    inside = [(until, [one for one in ids if one < vocab_size]) for until, ids in bans]
    return [(until, ids) for until, ids in inside if until and ids]


_HOW_TO_IGNORE = "Set generation_config='vllm' to ignore it"


def _ids(value: Any, key: str, source: str) -> list[int]:
    if value is None and key != "bad_words_ids":
        return []
    if not isinstance(value, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
    ):
        raise _error(source, key, "a list of token ids, such as [5, 6]", value)
    return value


def _error(source: str, key: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{source}: {key} must be {wanted}, got {quoted(value)}. {_HOW_TO_IGNORE}")
