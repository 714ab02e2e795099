"""Rotary embeddings: the settings of config.json, and the frequencies that follow from them.

rotary(reader, head_dim)   the frequencies, and the factor on cos and sin
context_lengths(reader)    the longest context, and that of the short factors of longrope
overridden_rope(...)       what `hf_overrides` makes of the settings
"""

from quire.models.rope.scalings import rotary
from quire.models.rope.settings import (
    SHORT_FACTORS,
    ContextLengths,
    by_layer,
    context_lengths,
    read_rope,
    rope_section,
)

__all__ = [
    "SHORT_FACTORS", "ContextLengths", "by_layer", "context_lengths", "read_rope", "rope_section",
    "rotary",
]  # fmt: skip
