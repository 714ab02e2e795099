"""Converts a Program to native ops: `fuse` chooses the ops, `storage` their memory."""

from quire.backends.cpu.lowering.fuse import fuse
from quire.backends.cpu.lowering.native_op import NativeOp, StoredWeight
from quire.backends.cpu.lowering.storage import Place, Storage, assign_storage

__all__ = ["NativeOp", "Place", "Storage", "StoredWeight", "assign_storage", "fuse"]
