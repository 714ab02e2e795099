"""The architectures of GGUF files that are read, one row each: `dense` and `mixtures`."""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.gguf.architectures.dense import DENSE
from quire.gguf.architectures.mixtures import LLAMA_WITH_EXPERTS, MIXTURES
from quire.gguf.architectures.row import Architecture, Config, Place
from quire.gguf.keys import Keys

__all__ = ["ARCHITECTURES", "Architecture", "Config", "Place", "architecture_of"]

ARCHITECTURES: dict[str, Architecture] = {**DENSE, **MIXTURES}
"""By `general.architecture`."""


def architecture_of(keys: Keys) -> Architecture:
    """The row of a file. Raises UnsupportedModelError."""
    row = ARCHITECTURES.get(keys.architecture)
    if row is None:
        raise UnsupportedModelError(
            f"{keys.path}: GGUF files of architecture {keys.architecture!r:.60} are not read; "
            f"those of {', '.join(sorted(ARCHITECTURES))} are"
        )
    if keys.architecture == "llama" and keys.whole("{arch}.expert_count", 0):
        return LLAMA_WITH_EXPERTS
    return row
