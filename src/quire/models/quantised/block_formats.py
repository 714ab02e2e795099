"""`BlockFormats`: which matrices of a GGUF file keep their format, and which formats they have.

`gguf/model_config` writes the type of each tensor into config.json, under `quantization_config`.
Types that are not in `BLOCK_FORMATS` are expanded while loading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import CheckpointError
from quire.gguf.block_types import BLOCK_TYPES
from quire.program.values import ActivationBits, GroupedFormat

BLOCK_FORMATS: dict[str, GroupedFormat] = {
    kind.name: GroupedFormat(held.table, held.group, has_minima=held.has_minima, scale=held.scale)
    for kind in BLOCK_TYPES.values()
    if (held := kind.held) is not None
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
