"""The configuration key that makes a config.json that of a draft head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MARK = "quire_draft_head"
OPTIONAL = ("embed_tokens.weight", "lm_head.weight", "fc.bias", "d2t", "0.0.linear.bias")
"""Tensors that a head may have; without the first two it uses those of the target."""
_SPELLINGS = (
    (re.compile(r"^(model|medusa_heads)\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\."), r"\1.\2.linear."),
)
"""Beginnings of names in published heads, with those that programs have."""


def with_head(
    hf_config: Mapping[str, Any], method: str, target: Mapping[str, Any], tensors: list[str]
) -> dict[str, Any]:
    """The configuration of a draft head. `hf_config`: its own; of `mtp`, the target's. `tensors`:
    those of `OPTIONAL` that it has."""
    mark = {"method": method, "target": dict(target), "tensors": tensors}
    return {**hf_config, MARK: mark}


def own_name(name: str) -> str:
    """The name that the programs of heads have for a tensor of a head's own file."""
    for pattern, replacement in _SPELLINGS:
        name = pattern.sub(replacement, name)
    return name


def without_head(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model that is not a draft head, whatever its file says."""
    return {key: value for key, value in hf_config.items() if key != MARK}


def is_head(hf_config: Mapping[str, Any]) -> bool:
    """Whether `with_head` made it."""
    return MARK in hf_config
