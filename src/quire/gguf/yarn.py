"""The keys of yarn: a ramp between frequencies that are divided and those that are not, and what
cos and sin are multiplied by.

`yarn_attn_factor` is the `attention_factor` of the checkpoint, which llama.cpp writes and does not
use; `yarn_ext_factor` is how much of the ramp counts. Source: llama.cpp, conversion/base.py and
src/llama-context.cpp.
"""

from __future__ import annotations

import math
from typing import Any

from quire.errors import UnsupportedModelError
from quire.gguf.keys import Keys

_PREFIX = "{arch}.rope.scaling."


def yarn_ramp(keys: Keys, factor: float) -> dict[str, Any]:
    """`rope_scaling` of config.json, without what cos and sin are multiplied by."""
    found: dict[str, Any] = {"rope_type": "yarn", "factor": factor, **original_length(keys)}
    for name in ("beta_fast", "beta_slow"):
        if keys.value(f"{_PREFIX}yarn_{name}") is not None:
            found[name] = keys.number(f"{_PREFIX}yarn_{name}")
    return found


def yarn_scaling(keys: Keys, factor: float) -> dict[str, Any]:
    """`rope_scaling` of config.json. Raises UnsupportedModelError for a part of a ramp."""
    found = yarn_ramp(keys, factor)
    if keys.value(f"{_PREFIX}yarn_log_multiplier") is not None:
        all_dim = keys.number(f"{_PREFIX}yarn_log_multiplier")
        found |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    own = keys.number(f"{_PREFIX}attn_factor", 1.0)
    trained = keys.number(f"{_PREFIX}yarn_attn_factor", -1.0)
    part = keys.number(f"{_PREFIX}yarn_ext_factor", -1.0)  # below 0: not said
    if part == 0.0 and own == 1.0 and trained in (-1.0, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if part >= 0.0 and part != 1.0:
        raise UnsupportedModelError(
            f"{keys.path}: {keys.architecture}.rope.scaling.yarn_ext_factor is {part:g}; 1 is "
            "supported, and 0 without a factor for attention"
        )
    if trained > 0.0:
        found["attention_factor"] = own * trained
    elif own != 1.0 and factor > 1.0:
        found["attention_factor"] = own * (1.0 + 0.1 * math.log(factor))
    return found


def original_length(keys: Keys) -> dict[str, Any]:
    """The positions that a model had before it was stretched, where the file says them."""
    key = f"{_PREFIX}original_context_length"
    if keys.value(key) is None:
        return {}
    return {"original_max_position_embeddings": keys.whole(key)}
