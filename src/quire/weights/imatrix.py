"""`read_imatrix`: the mean squares of what each matrix of a model is multiplied with.

llama.cpp's `llama-imatrix` measures them on a text, in GGUF or in an older format without a magic
number. Source: llama.cpp, tools/imatrix/imatrix.cpp, `save_imatrix` and `save_imatrix_legacy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, quoted
from quire.gguf.byte_reader import ByteReader, opened
from quire.gguf.container import MAGIC, MAX_TENSORS, GgufHeader, read_header
from quire.units import MiB
from quire.weights.mapped_file import MappedFile

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME_BYTES = 256
_MAX_PATH_BYTES = 1 << 16
MAX_BYTES = 512 * MiB
"""Size of the largest file that is read."""


@dataclass(frozen=True, slots=True)
class Imatrix:
    """The contents of a file."""

    squares: Mapping[str, NDArray[np.float32]]
    """By the names of matrices in GGUF files: for each column, the mean square of the numbers that
    it was multiplied with; of experts, those of one after the other."""
    texts: tuple[str, ...]
    """Names of the files with texts that they were measured on."""


def is_imatrix(path: Path) -> bool:
    """Whether a file holds such means instead of a text: it is a GGUF file, or has a zero byte in
    its first number, which a text does not have. Raises CheckpointError."""
    with opened(path) as reader:
        begin = reader.raw(min(4, reader.size))
    return begin == MAGIC or b"\0" in begin


def read_imatrix(path: Path) -> Imatrix:
    """Reads a file of either format. Raises CheckpointError for one that is damaged."""
    with opened(path) as reader:
        if reader.size > MAX_BYTES:
            raise reader.error(f"an imatrix must have at most {MAX_BYTES} bytes")
        is_old = reader.raw(min(4, reader.size)) != MAGIC
    found = _read_old(path) if is_old else _read_gguf(path)
    if not found.squares:
        raise CheckpointError(f"{path}: the file must have at least one matrix")
    return found


def _read_gguf(path: Path) -> Imatrix:
    header = read_header(path)
    if (kind := header.metadata.get("general.type")) != "imatrix":
        raise CheckpointError(f"{path}: general.type must be 'imatrix', not {quoted(kind)}")
    file = MappedFile(path)
    squares = {}
    for name in header.tensors:
        if name.endswith(_SUMS):
            matrix = name.removesuffix(_SUMS)
            sums, counts = (_numbers(header, file, matrix + end) for end in (_SUMS, _COUNTS))
            if counts.shape not in ((1, 1), (len(sums), 1)):
                raise CheckpointError(f"{path}: {quoted(matrix + _COUNTS)} must have one number, "
                                      f"or {len(sums)}")  # fmt: skip
            # Experts that no token reached have no mean of their own: the others have theirs.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                of_all = sums.sum(axis=0) / counts.sum()
                means = np.where(counts > 0, sums / np.maximum(counts, 1), of_all)
            squares[matrix] = _checked(path, matrix, means)
    file.check()
    texts = header.metadata.get("imatrix.datasets", [])
    names = [str(text) for text in texts] if isinstance(texts, list) else []
    return Imatrix(squares, tuple(names))


def _numbers(header: GgufHeader, file: MappedFile, name: str) -> NDArray[np.float64]:
    tensor = header.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{header.path}: the tensor {quoted(name)} is missing")
    if tensor.type.name != "F32" or len(tensor.shape) > 2:
        raise CheckpointError(f"{header.path}: {quoted(name)} must be a matrix of type F32")
    numbers = file.slice(tensor.offset, tensor.num_bytes).view(np.float32).astype(np.float64)
    return numbers.reshape(-1, tensor.shape[-1])


def _read_old(path: Path) -> Imatrix:
    squares: dict[str, NDArray[np.float32]] = {}
    with opened(path) as reader:
        for _ in range(_count(reader, 1, MAX_TENSORS, 12, "matrices")):
            size = _count(reader, 1, _MAX_NAME_BYTES, 1, "bytes of a name")
            name = _text(reader, size)
            if name in squares:
                raise reader.error(f"{quoted(name)} is there twice")
            num_calls = reader.number("i")
            num_values = _count(reader, 1, MAX_BYTES // 4, 4, f"numbers of {quoted(name)}")
            values = np.frombuffer(reader.raw(4 * num_values), "<f4").astype(np.float64)
            squares[name] = _checked(path, name, values / max(1, num_calls))
        if reader.position == reader.size:  # as the first versions wrote it
            return Imatrix(squares, ())
        reader.number("i")  # calls
        size = _count(reader, 0, _MAX_PATH_BYTES, 1, "bytes of a path")
        text = _text(reader, size)
    return Imatrix(squares, (text,) if text else ())


def _count(reader: ByteReader, least: int, most: int, item_bytes: int, what: str) -> int:
    """The next number, as a count of things of so many bytes. Raises CheckpointError."""
    count: int = reader.number("i")
    left = reader.size - reader.position
    if not least <= count <= most or count * item_bytes > left:
        raise reader.error(
            f"{count} {what} cannot be: {left} bytes of the file are left, and {least} to {most} "
            "are read; the file must be a text, or an imatrix of llama.cpp"
        )
    return count


def _text(reader: ByteReader, size: int) -> str:
    try:
        return reader.raw(size).decode()
    except UnicodeDecodeError as error:
        raise reader.error(f"a name is no UTF-8 text: {error.reason}") from None


def _checked(path: Path, name: str, squares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Raises CheckpointError unless they can be mean squares."""
    with np.errstate(over="ignore"):
        found = squares.astype(np.float32).reshape(-1)
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise CheckpointError(f"{path}: {quoted(name)} must have finite sums of squares")
    return found
