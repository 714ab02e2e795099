"""The configuration key that makes a config.json that of a draft head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "quire_draft_head"
OPTIONAL = ("embed_tokens.weight", "lm_head.weight", "fc.bias", "d2t")
"""Tensors that a head may have; without the first two it uses those of the target."""


def with_head(
    hf_config: Mapping[str, Any], method: str, target: Mapping[str, Any], tensors: list[str]
) -> dict[str, Any]:
    """The configuration of a draft head. `hf_config`: its own; of `mtp`, the target's. `tensors`:
    those of `OPTIONAL` that it has."""
    mark = {"method": method, "target": dict(target), "tensors": tensors}
    return {**hf_config, MARK: mark}


def without_head(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model that is no draft head, whatever its file says."""
    return {key: value for key, value in hf_config.items() if key != MARK}


def is_head(hf_config: Mapping[str, Any]) -> bool:
    """Whether `with_head` made it."""
    return MARK in hf_config
