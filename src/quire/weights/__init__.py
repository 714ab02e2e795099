"""Checkpoint readers: names in, bytes out."""

from quire.weights.binding import BoundStore, bind
from quire.weights.open import open_checkpoint
from quire.weights.store import ITEM_BYTES, HostTensor, TensorDtype, WeightStore

__all__ = [
    "ITEM_BYTES", "BoundStore", "HostTensor", "TensorDtype", "WeightStore", "bind",
    "open_checkpoint",
]  # fmt: skip
