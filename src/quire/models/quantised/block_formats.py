"""`BlockFormats`: which matrices of a GGUF file keep their format, and which formats they have.

`gguf/model_config` writes each tensor's type into config.json, under `quantization_config`. Types
that are not in `BLOCK_FORMATS` are expanded while loading. Sources: ggml-common.h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import CheckpointError
from quire.program.values import ActivationBits, GroupedFormat

BLOCK_FORMATS: dict[str, GroupedFormat] = {
    "Q4_0": GroupedFormat("s4", 32, scale="f16"),
    "Q4_1": GroupedFormat("u4", 32, has_minima=True, scale="f16"),
    "Q5_0": GroupedFormat("s5", 32, scale="f16"),
    "Q5_1": GroupedFormat("u5", 32, has_minima=True, scale="f16"),
    "Q8_0": GroupedFormat("s8", 32, scale="f16"),
    "Q4_K": GroupedFormat("u4", 32, has_minima=True, scale="nested"),
    "Q5_K": GroupedFormat("u5", 32, has_minima=True, scale="nested"),
    "Q6_K": GroupedFormat("s6", 16, scale="nested"),
    "IQ4_NL": GroupedFormat("iq4", 32, scale="f16"),
    "IQ4_XS": GroupedFormat("iq4", 32, scale="nested"),
    "MXFP4": GroupedFormat("e2m1", 32),
    "NVFP4": GroupedFormat("e2m1", 16, scale="e4m3"),
}
"""Formats by the name of the GGUF type."""

GGUF_FORMATS: dict[str, ActivationBits] = {"gguf": 16, "gguf_a8": 8}
"""Values of `quantization` that keep a GGUF file's formats. Activations of 8 bits have a scale per
block, as in llama.cpp."""


_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class BlockFormats:
    """Formats of a GGUF file's matrices, by transformers' names."""

    method = "gguf"
    types: Mapping[str, str]
    """Types by name. `.experts.*.` stands for all experts of a layer, "*" for every multiplied
    matrix without its own entry."""
    activation_bits: ActivationBits

    def format_of(self, name: str, depth: int) -> GroupedFormat | None:
        """Return the format of a matrix [N, depth]; None: it is expanded."""
        del depth  # rows are whole blocks, or the file has another type
        kind = self.types.get(name) or self.types.get(_EXPERT.sub(".experts.*.", name))
        found = BLOCK_FORMATS.get(kind or self.types.get("*", ""))
        if found is None:
            return None
        bits = self.activation_bits
        return replace(found, activation_bits=bits, activation_blocks=bits == 8)


def block_formats(config: Mapping[str, Any]) -> BlockFormats:
    """Read `quantization_config`. Raises CheckpointError if it is not that of a GGUF file."""
    types, bits = config.get("types"), config.get("activation_bits", 16)
    if not isinstance(types, Mapping) or not all(isinstance(t, str) for t in types.values()):
        raise CheckpointError(
            "config.json: quantization_config of a GGUF file must map names to types of tensors"
        )
    if bits not in GGUF_FORMATS.values():
        raise CheckpointError(f"config.json: activation_bits {bits!r} must be 8 or 16")
    return BlockFormats(types, bits)
