"""Rope scalings of which a file has tensors: what each frequency is divided by.

`rope_freqs.weight` is Llama 3's, and the file has no parameters of it. All published models have
the same two of them, so that the largest factor says the rest; that the whole tensor follows from
them is checked. `rope_factors_long.weight` and `rope_factors_short.weight` are those of longrope.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.keys import Keys

_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_MAX_FREQUENCIES = 1024
_TOLERANCE = 1e-4


def llama3_scaling(keys: Keys, theta: float) -> dict[str, Any]:
    """`rope_scaling` of config.json. Raises UnsupportedModelError for other factors."""
    factors = read_factors(keys, "rope_freqs.weight")
    factor = max(factors)
    if not math.isfinite(factor) or min(factors) <= 0 or not 1 < theta < 1e13:
        raise CheckpointError(f"{keys.path}: rope_freqs.weight has a factor that cannot be")
    factor = float(f"{factor:.6g}")
    for index, found in enumerate(factors):
        wanted = _wanted(theta ** (-index / len(factors)), factor)
        if abs(found - wanted) > _TOLERANCE * wanted:
            raise UnsupportedModelError(
                f"{keys.path}: the factors in rope_freqs.weight are not those of Llama 3's scaling"
            )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _wanted(frequency: float, factor: float) -> float:
    turns = _ORIGINAL * frequency / (2 * math.pi)
    smooth = min(max((turns - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def longrope_scaling(keys: Keys) -> dict[str, Any]:
    """`rope_scaling` of config.json. What llama.cpp multiplies cos and sin by is 1 where the file
    does not say."""
    return {
        "rope_type": "longrope",
        "long_factor": read_factors(keys, "rope_factors_long.weight"),
        "short_factor": read_factors(keys, "rope_factors_short.weight"),
        "attention_factor": keys.number("{arch}.rope.scaling.attn_factor", 1.0),
        "original_max_position_embeddings": keys.whole(
            "{arch}.rope.scaling.original_context_length", keys.whole("{arch}.context_length")
        ),
    }


def read_factors(keys: Keys, name: str) -> list[float]:
    """The numbers of a tensor of F32. Raises CheckpointError."""
    for header in keys.headers:
        tensor = header.tensors.get(name)
        if tensor is None:
            continue
        if tensor.type.name != "F32" or not 1 <= math.prod(tensor.shape) <= _MAX_FREQUENCIES:
            break
        with header.path.open("rb") as file:
            raw = os.pread(file.fileno(), tensor.num_bytes, tensor.offset)
        if len(raw) == tensor.num_bytes:
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    raise CheckpointError(
        f"{keys.path}: {name} must have at most {_MAX_FREQUENCIES} numbers in F32"
    )
