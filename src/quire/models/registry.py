"""`ModelRegistry`: from the `architectures` of config.json to a family.

A new model needs one file with a `FAMILY` and one row below. Families are imported at first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import ModelFamily

_BUILT_IN = {
    "Gemma2ForCausalLM": "quire.models.families.gemma:GEMMA2",
    "Gemma3ForCausalLM": "quire.models.families.gemma:GEMMA3",
    "GemmaForCausalLM": "quire.models.families.gemma:GEMMA",
    "GraniteForCausalLM": "quire.models.families.granite:FAMILY",
    "MptForCausalLM": "quire.models.families.mpt:FAMILY",
    "GPT2LMHeadModel": "quire.models.families.gpt2:FAMILY",
    "LLaMAForCausalLM": "quire.models.families.llama:FAMILY",
    "LlamaForCausalLM": "quire.models.families.llama:FAMILY",
    "MistralForCausalLM": "quire.models.families.mistral:FAMILY",
    "OPTForCausalLM": "quire.models.families.opt:FAMILY",
    "Qwen2ForCausalLM": "quire.models.families.qwen2:FAMILY",
    "Qwen3ForCausalLM": "quire.models.families.qwen3:FAMILY",
}


class _ModelRegistry:
    """Architecture name -> family, or its import path. Shared by the whole process."""

    def __init__(self, rows: dict[str, str]) -> None:
        self._rows: dict[str, ModelFamily | str] = {**rows}

    def register_model(self, architecture: str, family: ModelFamily | str) -> None:
        """Adds an architecture, or replaces it. `family` may be "package.module:ATTRIBUTE"."""
        if isinstance(family, str) and len(family.split(":")) != 2:
            raise ValueError(f"{family!r} is not of the form package.module:ATTRIBUTE")
        if not isinstance(family, str | ModelFamily):
            raise TypeError(f"{family!r} is neither a ModelFamily nor package.module:ATTRIBUTE")
        self._rows[architecture] = family

    def get_supported_archs(self) -> list[str]:
        """The known architectures, sorted."""
        return sorted(self._rows)

    def resolve(self, architectures: Sequence[str]) -> ModelFamily:
        """The family of the first known name. Raises UnsupportedModelError if there is none."""
        known = next((name for name in architectures if name in self._rows), None)
        if known is None:
            raise UnsupportedModelError(
                f"config.json: model architectures {list(architectures)} are not supported; "
                f"supported are {', '.join(self.get_supported_archs())}"
            )
        row = self._rows[known]
        if isinstance(row, ModelFamily):
            return row
        module, _, attribute = row.partition(":")
        family = getattr(importlib.import_module(module), attribute)
        if not isinstance(family, ModelFamily):
            raise TypeError(f"{row} is {family!r}, not a ModelFamily")
        return family


ModelRegistry = _ModelRegistry(_BUILT_IN)


def architectures_of(hf_config: Any) -> list[str]:
    """The `architectures` of config.json. Raises CheckpointError if they are missing."""
    found = hf_config.get("architectures")
    if (
        not isinstance(found, list | tuple)
        or not found
        or not all(isinstance(a, str) for a in found)
    ):
        raise CheckpointError(
            f"config.json: architectures is {found!r}; it must be a list of names, "
            'for example "architectures": ["LlamaForCausalLM"]'
        )
    return list(found)
