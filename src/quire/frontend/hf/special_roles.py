"""`SpecialRoles`: a tokenizer's special tokens by their names in `transformers`.

Base class of `HFTokenizer`.
"""

from __future__ import annotations

from typing import Any

from quire.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
          "mask_token")  # fmt: skip
_EXTRA = ("extra_special_tokens", "additional_special_tokens")


class _Role:
    """The token of a role as text, or its id with `is_id`; None if the tokenizer has none."""

    def __init__(self, *, is_id: bool = False) -> None:
        self._is_id = is_id

    def __set_name__(self, owner: type, name: str) -> None:
        self._role = name.removesuffix("_id")
        self.__doc__ = f"The {name}, or None."

    def __get__(self, tokenizer: SpecialRoles | None, owner: type) -> Any:
        if tokenizer is None:
            return self
        token = tokenizer.inner.roles.get(self._role)
        if token is None or not self._is_id:
            return token
        return tokenizer.inner.token_to_id(token)


class SpecialRoles:
    """Special tokens as attributes: `eos_token`, `eos_token_id`, ..."""

    bos_token, bos_token_id = _Role(), _Role(is_id=True)
    eos_token, eos_token_id = _Role(), _Role(is_id=True)
    unk_token, unk_token_id = _Role(), _Role(is_id=True)
    sep_token, sep_token_id = _Role(), _Role(is_id=True)
    pad_token, pad_token_id = _Role(), _Role(is_id=True)
    cls_token, cls_token_id = _Role(), _Role(is_id=True)
    mask_token, mask_token_id = _Role(), _Role(is_id=True)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.inner = tokenizer
        """The tokenizer that the engine uses."""

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by role."""
        return {role: self.inner.roles[role] for role in _ROLES if role in self.inner.roles}

    @property
    def additional_special_tokens(self) -> list[str]:
        """Special tokens that the checkpoint lists without a role."""
        found: list[str] = []
        for key in _EXTRA:
            given = self.inner.config.get(key) or []
            for token in given.values() if isinstance(given, dict) else given:
                found.append(token if isinstance(token, str) else token["content"])
        return list(dict.fromkeys(found))

    extra_special_tokens = additional_special_tokens

    @property
    def all_special_tokens(self) -> list[str]:
        """All special tokens without duplicates: those with a role, then the others."""
        return list(
            dict.fromkeys([*self.special_tokens_map.values(), *self.additional_special_tokens])
        )

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of all special tokens."""
        ids = (self.inner.token_to_id(token) for token in self.all_special_tokens)
        return [token_id for token_id in ids if token_id is not None]
