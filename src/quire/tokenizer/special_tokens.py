"""Reads the special and added tokens of a checkpoint from up to three files.

`tokenizer_config.json` is newer; `special_tokens_map.json` and `added_tokens.json` count
only where it has no `added_tokens_decoder`, as transformers reads them. Called by
`rust_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.config.checkpoint.model_files import read_optional_json_object
from quire.errors import CheckpointError, quoted

if TYPE_CHECKING:
    import tokenizers

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
          "mask_token")  # fmt: skip
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """A token to add to the vocabulary. `normalized` None: only if it is not special. `token_id`:
    where the file says it."""

    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The roles of tokens by name (`bos_token`, ...), and all tokens to add, in order of id."""

    roles: Mapping[str, str]
    to_add: tuple[TokenSpec, ...]


def read_special_tokens(directory: Path, tokenizer_config: Mapping[str, Any]) -> SpecialTokens:
    """Merges the files in `directory` into `tokenizer_config`. Raises CheckpointError for invalid
    entries."""
    values = dict(tokenizer_config)
    files = dict.fromkeys(values, "tokenizer_config.json")
    if "added_tokens_decoder" not in values:
        legacy = read_optional_json_object(directory / "special_tokens_map.json")
        values.update(legacy)
        files.update(dict.fromkeys(legacy, "special_tokens_map.json"))

    def where(key: str) -> str:
        return f"{directory / files[key]}: {key}"

    named = [role for role in _ROLES if values.get(role) is not None]
    roles = {role: _spec(values[role], where(role), special=True) for role in named}
    extra = [
        _spec(value, where(key), special=True)
        for key in _EXTRA
        if values.get(key) is not None
        for value in _items(values[key], where(key))
    ]
    if "added_tokens_decoder" in values:
        table = values["added_tokens_decoder"]
        added = _added_tokens(table, where("added_tokens_decoder"))
    else:
        special = {spec.content for spec in (*roles.values(), *extra)}
        added = _legacy_added_tokens(directory / "added_tokens.json", special)
    to_add: dict[str, TokenSpec] = {}
    for spec in (*added, *roles.values(), *extra):
        to_add.setdefault(spec.content, spec)
    return SpecialTokens(
        {role: spec.content for role, spec in roles.items()}, tuple(to_add.values())
    )


def _added_tokens(table: Any, where: str) -> list[TokenSpec]:
    """`added_tokens_decoder`: id to token; in order of id."""
    if not isinstance(table, dict):
        raise CheckpointError(f"{where} is no JSON object")
    added = [
        replace(_spec(value, f"{where} {key!r}", special=False), token_id=_token_id(key, where))
        for key, value in table.items()
    ]
    return sorted(added, key=lambda spec: spec.token_id or 0)


def _legacy_added_tokens(path: Path, special: Collection[str]) -> list[TokenSpec]:
    """added_tokens.json: token to id; in order of id."""
    added = [
        TokenSpec(content, special=content in special, token_id=_token_id(token_id, str(path)))
        for content, token_id in read_optional_json_object(path).items()
    ]
    return sorted(added, key=lambda spec: spec.token_id or 0)


def _spec(value: Any, where: str, *, special: bool) -> TokenSpec:
    """A token as text, or with its flags; `special` unless the flags say."""
    if isinstance(value, str):
        return TokenSpec(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(f"{where} is neither a string nor has a content")
    flags = {flag: value[flag] for flag in _FLAGS if flag in value}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise CheckpointError(f"{where} has a flag that must be a boolean")
    return TokenSpec(value["content"], **{"special": special, **flags})


def _items(value: Any, where: str) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list):
        raise CheckpointError(f"{where} must be a list")
    return value


def _token_id(value: Any, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if type(value) is int and 0 <= value < 2**31:
        return value
    raise CheckpointError(
        f"{where}: adds a token with id {value!r:.50}, which must be a number from 0 to 2**31 - 1"
    )


_MAX_ADDED = 1 << 16


def with_gaps_filled(special: SpecialTokens, size: int, path: Path) -> SpecialTokens:
    """Adds an unused token for each missing id between `size`, the size of the vocabulary, and the
    last added id, because the Rust library counts on from the vocabulary's last id. Raises
    CheckpointError if there are too many."""
    added = {
        spec.token_id: spec
        for spec in special.to_add
        if spec.token_id is not None and spec.token_id >= size
    }
    last = max(added, default=size - 1)
    if last - size >= _MAX_ADDED:
        raise CheckpointError(
            f"{path}: has {size} tokens, and {added[last].content!r:.60} is added with id {last}; "
            f"at most {_MAX_ADDED} are added"
        )
    in_order = [
        added.get(token_id) or TokenSpec(f"<|unused_{token_id}|>", special=True)
        for token_id in range(size, last + 1)
    ]
    known = set(in_order)
    others = [spec for spec in special.to_add if spec not in known]
    return SpecialTokens(special.roles, (*in_order, *others))


def check_ids(backend: tokenizers.Tokenizer, special: SpecialTokens, path: Path) -> None:
    """Raises CheckpointError where an added token has got another id than the files say."""
    for spec in special.to_add:
        found = backend.token_to_id(spec.content)
        if spec.token_id is not None and found != spec.token_id:
            raise CheckpointError(
                f"{path}: {spec.content!r:.60} is added as token {spec.token_id}, and the "
                f"vocabulary has it as {found}"
            )


_WITH_TYPES = frozenset({
    "", "BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer",
    "SqueezeBertTokenizer", "LayoutLMTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer",
})  # fmt: skip
"""Classes that give the types of tokens unless tokenizer_config.json says otherwise. Source:
transformers 5, `model_input_names` of its tokenizers."""


def gives_types(config: Mapping[str, Any]) -> bool:
    """Whether a model gets the types of tokens. Raises CheckpointError for wrong names."""
    names = config.get("model_input_names")
    if names is None:
        return str(config.get("tokenizer_class") or "").removesuffix("Fast") in _WITH_TYPES
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            "tokenizer_config.json: model_input_names must be a list of names, such as "
            f'["input_ids", "attention_mask"], got {quoted(names)}'
        )
    return "token_type_ids" in names
