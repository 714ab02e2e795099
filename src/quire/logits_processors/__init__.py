"""Custom logits processors: users' code between the model's logits and the sampling.

The interface is that of vLLM's `vllm.v1.sample.logits_processor`, with NumPy arrays for tensors.
Classes whose module imports torch get tensors (`worker/processors/guarded.py`). The front end
checks parameters with the classes; the worker runs them (`worker/processors/`).
"""

from quire.logits_processors.adapter import AdapterLogitsProcessor, RequestLogitsProcessor
from quire.logits_processors.interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
    RemovedRequest,
    RowsError,
)

__all__ = [
    "AdapterLogitsProcessor",
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "MovedRequest",
    "RemovedRequest",
    "RequestLogitsProcessor",
    "RowsError",
]
