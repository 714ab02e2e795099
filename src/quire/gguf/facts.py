"""Facts of a GGUF model that its files hold, for people and for clients of Ollama."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.gguf.container import Value, read_header

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""llama.cpp's `llama_ftype`, the values of `general.file_type`."""


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """Facts of a model, from the headers of its files."""

    architecture: str
    file_type: str
    """Such as Q4_K_M."""
    num_parameters: int
    metadata: Mapping[str, Value]


def read_facts(files: Sequence[Path]) -> GgufFacts:
    """The facts of a model with these files. Raises CheckpointError."""
    headers = [read_header(file) for file in files]
    sizes = Counter[str]()
    for tensor in (one for header in headers for one in header.tensors.values()):
        sizes[tensor.type.name] += prod(tensor.shape)
    first = headers[0]
    code = first.metadata.get("general.file_type")
    named = _FILE_TYPES.get(code) if isinstance(code, int) else None
    most = sizes.most_common(1)[0][0] if sizes else "unknown"
    return GgufFacts(first.architecture, named or most, sizes.total(), first.metadata)
