"""Checkpoint readers: names in, bytes out."""

from quire.weights.store import ITEM_BYTES, HostTensor, TensorDtype, WeightStore

__all__ = ["ITEM_BYTES", "HostTensor", "TensorDtype", "WeightStore"]
