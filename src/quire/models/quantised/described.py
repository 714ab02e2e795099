"""Finds the description of a checkpoint's quantisation in its configuration.

`read_config` puts a description from a separate file under `quantization_config`. All code that
asks whether a checkpoint is quantised calls this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import UnsupportedModelError
from quire.models.text_part import text_part

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
