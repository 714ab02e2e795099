"""Where a configuration describes the quantisation of its checkpoint.

`read_config` puts a description that is in a file of its own under `quantization_config`. Called by
everything that asks whether a checkpoint is quantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import UnsupportedModelError
from quire.models.text_part import text_part

_KEYS = ("quantization_config", "compression_config")


def quantisation_of(hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The description, at the top or in the section of the text model; None: there is none. Raises
    UnsupportedModelError for one that is not a JSON object."""
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
