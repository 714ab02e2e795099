"""`Mixer`: the part of a layer in which a token's row meets those of earlier tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire.program import Builder, Value


class Mixer(ABC):
    """A record of sizes and tensor names. Attention itself is described by `AttentionSpec`."""

    @abstractmethod
    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        """Add the mixer of the normed rows x to the program. `layer`: prefix of the layer's
        tensors."""
