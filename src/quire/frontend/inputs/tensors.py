"""Tensors that a request has as base64 of a file: safetensors, NumPy, or torch.save.

Nothing is unpickled: the reader of torch's files accepts a tensor and nothing else.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, PromptError
from quire.param_checks import base64_bytes

_NUMPY_ERRORS = (
    ValueError, TypeError, EOFError, OSError, MemoryError, OverflowError, SyntaxError, TokenError,
)  # fmt: skip
"""Exceptions that NumPy raises for a damaged file; it reads the header with Python's tokenizer."""
_MOST_REASON = 200
"""Characters of a reader's reason that are repeated to the caller."""


def tensor_of(text: str, name: str) -> NDArray[Any]:
    """The numbers in base64; those of a tensor are float32. `name`: the field. Raises
    PromptError."""
    try:
        data = base64_bytes(text)
    except ValueError:
        raise PromptError(
            f"`{name}` must be base64 of a safetensors file, a NumPy file, or a file of "
            "torch.save.",
            parameter=name,
        ) from None
    return _numpy_array(data, name) if data.startswith(b"\x93NUMPY") else _tensor(data, name)


def _numpy_array(data: bytes, name: str) -> NDArray[Any]:
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _unreadable(str(error), name) from None
    array: NDArray[Any] = found
    return array


def _tensor(data: bytes, name: str) -> NDArray[np.float32]:
    from quire.weights import open_tensor_file

    with tempfile.NamedTemporaryFile(prefix="quire-embeds-") as file:
        file.write(data)
        file.flush()
        try:
            store = open_tensor_file(Path(file.name))
            names = list(store.names())
            if len(names) != 1:
                raise CheckpointError(f"the file must have one tensor, not {len(names)}")
            rows: NDArray[np.float32] = store.get(names[0]).to_float32().copy()
            return rows
        except CheckpointError as error:
            raise _unreadable(str(error).replace(file.name, "the file"), name) from None


def _unreadable(reason: str, name: str) -> PromptError:
    left = len(reason) - _MOST_REASON
    if left > 0:
        reason = f"{reason[:_MOST_REASON]}... ({left} more characters truncated)"
    return PromptError(
        f"`{name}` could not be deserialized as a torch tensor: {reason}", parameter=name
    )
