"""Checkpoint readers: names in, bytes out."""

from quire.weights.binding import BoundStore, bind
from quire.weights.not_finite import warn_not_finite
from quire.weights.open import (
    open_checkpoint,
    open_encoder,
    open_tensor_file,
    open_with_folders,
    projector_file,
    weight_files,
)
from quire.weights.packed_file import (
    PACKED_NAME,
    Calibration,
    PackedFile,
    PackedHeader,
    PackedWriter,
)
from quire.weights.sharded import folder_store
from quire.weights.store import HostTensor, TensorDtype, WeightStore

__all__ = [
    "PACKED_NAME", "BoundStore", "Calibration", "HostTensor", "PackedFile", "PackedHeader",
    "PackedWriter", "TensorDtype", "WeightStore", "bind", "folder_store", "open_checkpoint",
    "open_encoder", "open_tensor_file", "open_with_folders", "projector_file", "warn_not_finite",
    "weight_files",
]  # fmt: skip
