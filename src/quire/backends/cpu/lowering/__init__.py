"""Converts a Program to native ops: `fuse` chooses the ops, `storage` their memory."""

from quire.backends.cpu.lowering.fuse import fuse, homes, num_source_ops
from quire.backends.cpu.lowering.native_op import Home, NativeOp, StoredWeight
from quire.backends.cpu.lowering.stages import Pieces, pieces_of
from quire.backends.cpu.lowering.storage import Storage, assign_storage

__all__ = [
    "Home", "NativeOp", "Pieces", "Storage", "StoredWeight", "assign_storage", "fuse",
    "homes", "num_source_ops", "pieces_of",
]  # fmt: skip
