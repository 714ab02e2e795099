"""What a checkpoint says of its special and added tokens, gathered from up to three files.

`tokenizer_config.json` is newer; `special_tokens_map.json` and `added_tokens.json` count
only where it has no `added_tokens_decoder`, as transformers reads them. Called by `loading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config.model_files import read_optional_json_object
from quire.errors import CheckpointError

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
          "mask_token")  # fmt: skip
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """A token to add to the vocabulary. `normalized` None: only if it is not special."""

    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The roles of tokens by name (`bos_token`, ...), and all tokens to add, in order of id."""

    roles: Mapping[str, str]
    to_add: tuple[TokenSpec, ...]


def read_special_tokens(directory: Path, tokenizer_config: Mapping[str, Any]) -> SpecialTokens:
    """Reads them beside `tokenizer_config`. Raises CheckpointError for entries of another shape."""
    held = dict(tokenizer_config)
    added: dict[int, TokenSpec] = {}
    if "added_tokens_decoder" in held:
        for key, value in _object(held, "added_tokens_decoder").items():
            added[_token_id(key)] = _spec(value, "added_tokens_decoder")
    else:
        held.update(read_optional_json_object(directory / "special_tokens_map.json"))
    roles = {role: _spec(held[role], role) for role in _ROLES if held.get(role) is not None}
    extra = [_spec(value, key) for key in _EXTRA for value in _items(held.get(key), key)]
    if "added_tokens_decoder" not in held:
        special = {spec.content for spec in (*roles.values(), *extra)}
        legacy = read_optional_json_object(directory / "added_tokens.json")
        for content, token_id in legacy.items():
            added[_token_id(token_id)] = TokenSpec(content, special=content in special)
    ordered = [added[token_id] for token_id in sorted(added)]
    to_add: dict[str, TokenSpec] = {}
    for spec in (*ordered, *roles.values(), *extra):
        to_add.setdefault(spec.content, spec)
    return SpecialTokens(
        {role: spec.content for role, spec in roles.items()}, tuple(to_add.values())
    )


def _spec(value: Any, what: str) -> TokenSpec:
    if isinstance(value, str):
        return TokenSpec(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(f"the tokenizer's {what} is neither a string nor has a content")
    flags = {flag: value[flag] for flag in _FLAGS if flag in value}
    if not all(isinstance(held, bool) for held in flags.values()):
        raise CheckpointError(f"the tokenizer's {what} has a flag that is no boolean")
    return TokenSpec(value["content"], **{"special": what != "added_tokens_decoder", **flags})


def _object(held: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = held[key]
    if not isinstance(value, dict):
        raise CheckpointError(f"the tokenizer's {key} is no JSON object")
    return value


def _items(value: Any, key: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list):
        raise CheckpointError(f"the tokenizer's {key} is no list")
    return value


def _token_id(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if type(value) is int and 0 <= value < 2**31:
        return value
    raise CheckpointError(f"the tokenizer adds a token under {value!r:.50}, which is no id")
