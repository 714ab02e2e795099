"""Truncates, pads and packs token ids as a call of a `transformers` tokenizer does, and its
attributes for special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from quire.errors import RequestError, quoted
from quire.tokenizer import Tokenizer

Side = Literal["left", "right"]
Padding = Literal["do_not_pad", "longest", "max_length"]
_PADDING: dict[bool | str, Padding] = {
    False: "do_not_pad", True: "longest",
    "do_not_pad": "do_not_pad", "longest": "longest", "max_length": "max_length",
}  # fmt: skip


class BatchEncoding(dict[str, Any]):
    """A dict whose entries are also attributes: `input_ids`, `attention_mask`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """Truncation and padding of sequences of ids."""

    truncation: bool
    padding: Padding
    max_length: int | None
    """Maximum length in tokens, including special tokens; None: no limit."""
    truncation_side: Side
    padding_side: Side
    pad_id: int | None
    return_tensors: Literal["np"] | None

    def cut(self, ids: list[int], num_special: int) -> list[int]:
        """The part of a text that fits together with its special tokens."""
        if not self.truncation or self.max_length is None:
            return ids
        room = max(0, self.max_length - num_special)
        if len(ids) <= room:
            return ids
        return ids[:room] if self.truncation_side == "right" else ids[len(ids) - room :]

    def finish(self, sequences: list[list[int]], *, is_batch: bool) -> BatchEncoding:
        """Pad the sequences. A single sequence is not wrapped in a list, unless it becomes an
        array. Raises RequestError for an array of sequences of different lengths."""
        length = self._padded_length(sequences)
        ids, masks = [], []
        for sequence in sequences:
            missing = max(0, length - len(sequence))
            if missing and self.pad_id is None:
                raise RequestError("padding requires a pad token, but this tokenizer has none")
            pad, mask = [self.pad_id or 0] * missing, [0] * missing
            ones = [1] * len(sequence)
            at_end = self.padding_side == "right"
            ids.append(sequence + pad if at_end else pad + sequence)
            masks.append(ones + mask if at_end else mask + ones)
        if self.return_tensors == "np":
            if len({len(one) for one in ids}) > 1:
                raise RequestError(
                    "return_tensors='np' requires sequences of equal length: set padding=True"
                )
            return BatchEncoding(input_ids=np.array(ids), attention_mask=np.array(masks))
        if is_batch:
            return BatchEncoding(input_ids=ids, attention_mask=masks)
        return BatchEncoding(input_ids=ids[0], attention_mask=masks[0])

    def _padded_length(self, sequences: Sequence[list[int]]) -> int:
        if self.padding == "longest":
            return max(map(len, sequences), default=0)
        if self.padding == "max_length":
            return self.max_length or 0
        return 0


def encoding_options(
    *,
    truncation: Any,
    padding: Any,
    max_length: Any,
    return_tensors: Any,
    longest: int | None,
    truncation_side: Side,
    padding_side: Side,
    pad_id: int | None,
) -> EncodingOptions:
    """Validate the options of a call. `longest`: the tokenizer's `model_max_length`, if it has one.
    Raises RequestError."""
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise _error("max_length", max_length, "a positive integer or None")
    if truncation not in (None, False, True, "longest_first", "only_first", "do_not_truncate"):
        raise _error("truncation", truncation, "True or False")
    if not (padding is None or (isinstance(padding, (bool, str)) and padding in _PADDING)):
        raise _error("padding", padding, "True, False, 'longest' or 'max_length'")
    if return_tensors not in (None, "np"):
        raise _error("return_tensors", return_tensors, "'np' or None (torch is not supported)")
    return EncodingOptions(
        truncation=truncation not in (None, False, "do_not_truncate"),
        padding=_PADDING[padding or False],
        max_length=longest if max_length is None else max_length,
        truncation_side=truncation_side,
        padding_side=padding_side,
        pad_id=pad_id,
        return_tensors=return_tensors,
    )


def _error(name: str, value: object, what: str) -> RequestError:
    return RequestError(f"{name} must be {what}, got {quoted(value)}", parameter=name, value=value)


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
