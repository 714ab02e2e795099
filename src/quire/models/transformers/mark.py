"""The configuration key that marks a model that runs on transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARK = "quire_model_impl"


def is_transformers(hf_config: Mapping[str, Any]) -> bool:
    """Whether `with_model_impl` chose transformers."""
    return hf_config.get(MARK) == "transformers"
