"""The KV cache's choices: its number format under any of vLLM's names, and its block size."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from quire.errors import ConfigError, quoted

KVCacheDtype = Literal["float32", "bfloat16", "int8"]

KV_MEANINGS: dict[KVCacheDtype, str] = {
    "float32": "32 bits a number",
    "bfloat16": "16 bits a number",
    "int8": "8 bits a number, a scale for each token and head",
}

DEFAULT_BLOCK_SIZE = 16
MAX_BLOCK_SIZE = 1024

_SAME: dict[str, KVCacheDtype] = {
    "float": "float32",
    "int8_per_token_head": "int8",
}
"""Names that mean one of the formats here; the second is vLLM's for this very scheme."""

_REASONS = {
    "fp8": "there are no 8-bit floating-point numbers here",
    "float16": "float16 is not computed here",
    "half": "float16 is not computed here",
    "int4": "4 bits are not available",
    "nvfp4": "4 bits are not available",
    "turboquant": "rotated formats are not available",
}
"""Why not, by how a name begins."""


def resolve_kv_cache_dtype(name: str, dtype: KVCacheDtype, known: Collection[str]) -> KVCacheDtype:
    """The format that `name` asks for, of those that the backend knows; `auto` is `dtype`.

    Raises ConfigError for anything else, saying what would work.
    """
    works = [held for held in KV_MEANINGS if held in known]
    wanted = dtype if name == "auto" else _SAME.get(name, name)
    for held in works:
        if held == wanted:
            return held
    reasons = (why for start, why in _REASONS.items() if name.startswith(start))
    reason = next(reasons, "unknown name")
    choices = "; ".join(f"{held} ({KV_MEANINGS[held]})" for held in works)
    raise ConfigError(
        f"kv_cache_dtype={quoted(name)} is not available: {reason}; use auto (the model's dtype); "
        f"{choices}"
    )


def resolve_block_size(size: int | None, multiple: int) -> int:
    """Tokens in a KV block, of which the backend wants a multiple of `multiple`."""
    if size is None:
        return DEFAULT_BLOCK_SIZE
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BLOCK_SIZE:
        raise ConfigError(
            f"block_size must be from {multiple} to {MAX_BLOCK_SIZE}, got {quoted(size)}; "
            f"try {DEFAULT_BLOCK_SIZE}"
        )
    if size % multiple:
        nearest = max(multiple, round(size / multiple) * multiple)
        raise ConfigError(f"block_size must be a multiple of {multiple}, got {size}; try {nearest}")
    return size
