"""Reads `prompt_embeds` of a request: base64 of a safetensors file, of a NumPy file, or of what
`torch.save` writes.

Nothing is unpickled: the reader of torch's files accepts a tensor and nothing else. Runs in the
server's work pool.
"""

from __future__ import annotations

import base64
import binascii
import io
import tempfile
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.frontend.inputs.prompt_embeds import NOT_ENABLED, embeds_error, read_embeds
from quire.server.served_model import ServedModel

_NUMPY_ERRORS = (
    ValueError, TypeError, EOFError, OSError, MemoryError, OverflowError, SyntaxError, TokenError,
)  # fmt: skip
"""What NumPy raises for a damaged file; it reads the header with Python's tokenizer."""
_MOST_REASON = 200
"""Characters of a reader's reason that are repeated to the caller."""


def decode_embeds(model: ServedModel, text: str) -> NDArray[np.float32]:
    """The rows of one text. Raises RequestError."""
    config = model.loaded_engine().config.model
    if config.prompt_embeds_width is None:
        raise embeds_error(NOT_ENABLED)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise embeds_error(
            "`prompt_embeds` must be base64 of a safetensors file, a NumPy file, or a file of "
            "torch.save."
        ) from None
    array = _numpy_array(data) if data.startswith(b"\x93NUMPY") else _tensor(data)
    return read_embeds(array, config.prompt_embeds_width, config.max_model_len)


def _numpy_array(data: bytes) -> NDArray[Any]:
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _unreadable(str(error)) from None
    array: NDArray[Any] = found
    return array


def _tensor(data: bytes) -> NDArray[np.float32]:
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
            raise _unreadable(str(error).replace(file.name, "the file")) from None


def _unreadable(reason: str) -> Exception:
    left = len(reason) - _MOST_REASON
    if left > 0:
        reason = f"{reason[:_MOST_REASON]}... ({left} more characters truncated)"
    return embeds_error(f"`prompt_embeds` could not be deserialized as a torch tensor: {reason}")
