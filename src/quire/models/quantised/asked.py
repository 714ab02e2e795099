"""What is noted in a configuration beside `quantization_config`, once more is known of its files.

A value of `quantization` may ask for other formats than those of the file; and the names of a
checkpoint's tensors say more than its `quantization_config`. Both are noted under the key `quire`,
so that whoever has the configuration finds the same formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError

_KEY = "quire"


@dataclass(frozen=True, slots=True)
class Noted:
    """What is known of quantised matrices beside `quantization_config`."""

    expanded: str | None = None
    """They become plain numbers; why, in words that may be empty. None: nothing asks for it."""
    plain: frozenset[str] = frozenset()
    """Names of matrices that are not held in the checkpoint's format."""
    is_ordered: bool = False
    """The columns of a group are not neighbours."""


def noted(hf_config: Mapping[str, Any]) -> Noted:
    """Raises CheckpointError for notes that were not made here."""
    notes = hf_config.get(_KEY)
    if notes is None:
        return Noted()
    expanded = notes.get("expanded") if isinstance(notes, Mapping) else 0
    plain = notes.get("plain", []) if isinstance(notes, Mapping) else None
    is_ordered = notes.get("ordered", False) if isinstance(notes, Mapping) else None
    if (
        not isinstance(expanded, str | None)
        or not isinstance(plain, list | tuple)
        or not all(isinstance(name, str) for name in plain)
        or not isinstance(is_ordered, bool)
    ):
        raise CheckpointError(f"config.json: {_KEY!r} is a key of this program; remove it")
    return Noted(expanded, frozenset(plain), is_ordered)


def as_expanded(hf_config: Mapping[str, Any], why: str = "") -> Mapping[str, Any]:
    """The configuration of a checkpoint whose matrices become plain numbers."""
    return {**hf_config, _KEY: {"expanded": why}}


def with_plain(hf_config: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The configuration of a checkpoint in which these matrices are not held in its format."""
    return {**hf_config, _KEY: {**hf_config.get(_KEY, {}), "plain": sorted(names)}}


def with_order(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a checkpoint whose groups are of columns that are not neighbours."""
    return {**hf_config, _KEY: {**hf_config.get(_KEY, {}), "ordered": True}}
