"""Notes that Quire adds to a configuration next to `quantization_config`.

A value of `quantization` may request other formats than those of the file, and the checkpoint's
tensor names say more than `quantization_config`. Both are stored under the key `quire`, so that
every user of the configuration derives the same formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.text_part import text_part

_KEY = "quire"


@dataclass(frozen=True, slots=True)
class Noted:
    """Facts about quantised matrices besides those in `quantization_config`."""

    expanded: str | None = None
    """Why the matrices are expanded to plain numbers; may be "". None: they are not."""
    plain: frozenset[str] = frozenset()
    """Names of matrices that are not stored in the checkpoint's format."""
    is_ordered: bool = False
    """Whether the columns of a group are not adjacent."""


def noted(hf_config: Mapping[str, Any]) -> Noted:
    """Read the notes. Raises CheckpointError if they were not written by Quire."""
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
        raise CheckpointError(f"config.json: the key {_KEY!r} is reserved for Quire; remove it")
    return Noted(expanded, frozenset(plain), is_ordered)


def as_expanded(hf_config: Mapping[str, Any], why: str = "") -> Mapping[str, Any]:
    """Return the configuration with a note that matrices are expanded to plain numbers."""
    return {**hf_config, _KEY: {"expanded": why}}


def with_plain(hf_config: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """Return the configuration with a note that these matrices are not in the checkpoint's
    format."""
    return {**hf_config, _KEY: {**hf_config.get(_KEY, {}), "plain": sorted(names)}}


def with_order(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with a note that the columns of groups are not adjacent."""
    return {**hf_config, _KEY: {**hf_config.get(_KEY, {}), "ordered": True}}


_KEYS = ("quantization_config", "compression_config")


def quantisation_of(hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the description from the top level or from the text model's section; None if there is
    none. Raises UnsupportedModelError if it is not a JSON object."""
    for config in (text_part(hf_config), hf_config):
        for key in _KEYS:
            found = config.get(key)
            if isinstance(found, Mapping) and isinstance(found.get("quantization"), Mapping):
                found = {**found, **found["quantization"]}  # ModelOpt's file
            if isinstance(found, Mapping) and found:
                return found
            if found:
                raise UnsupportedModelError(
                    f"config.json: {key} must be a JSON object, got {type(found).__name__}"
                )
    return None
