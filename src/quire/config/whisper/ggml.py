"""Reads a `ggml-*.bin` of whisper.cpp: sizes, vocabulary, and where each tensor lies.

Source: whisper.cpp, models/convert-pt-to-ggml.py and `whisper_model_load`. The filters of the
spectrum are skipped: they follow from their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.block_types import BLOCK_TYPES
from quire.gguf.byte_reader import ByteReader, opened
from quire.gguf.container import GgufTensor

MAGIC = b"lmgg"
"""The number 0x67676d6c, which spells "ggml"."""
_KEYS = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "text_width", "decoder_attention_heads", "decoder_layers",
    "num_mel_bins",
)  # fmt: skip
"""Sizes in the order of the file, by transformers' names."""
_MOST = {"vocab_size": 1 << 20, "d_model": 1 << 16, "num_mel_bins": 1 << 10}
_MOST_OTHERS = 1 << 16
_FREQUENCIES = 201
_MAX_TOKEN_BYTES = 512
_MAX_NAME_BYTES = 128
_MOST_TENSORS = 1 << 16
_MAX_DIMS = 4
_QUANT_VERSION = 2
"""Version of the blocks since May 2023; the type of older blocks has the same number."""


@dataclass(frozen=True, slots=True)
class GgmlFile:
    """The header of a file."""

    path: Path
    sizes: Mapping[str, int]
    tokens: Sequence[bytes]
    """The vocabulary without special tokens, in order of rank. An empty token may be its last."""
    tensors: Mapping[str, GgufTensor]


def is_ggml(path: Path) -> bool:
    """Whether a file begins as whisper.cpp's do."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def read_ggml(path: Path) -> GgmlFile:
    """Raises CheckpointError for a damaged file, and UnsupportedModelError for one of another
    model."""
    with opened(path) as reader:
        if reader.raw(len(MAGIC)) != MAGIC:
            raise reader.error("is not a ggml file of whisper.cpp")
        sizes, is_old = _sizes(reader, path)
        reader.skip(4 * sizes["num_mel_bins"] * _FREQUENCIES)
        tokens = _tokens(reader, sizes["vocab_size"])
        tensors = _tensors(reader)
    if not tensors:
        raise CheckpointError(f"{path}: has no tensors")
    if is_old and any(tensor.type.block_items > 1 for tensor in tensors.values()):
        raise UnsupportedModelError(
            f"{path}: has blocks of an old version; quantise the model again with a newer "
            "whisper.cpp"
        )
    return GgmlFile(path, sizes, tokens, tensors)


def _sizes(reader: ByteReader, path: Path) -> tuple[dict[str, int], bool]:
    """The sizes, and whether blocks are of an old version."""
    sizes = {key: reader.number("i") for key in _KEYS}
    file_type = reader.number("i")
    filters = reader.number("i"), reader.number("i")
    is_whisper = (
        all(0 < size <= _MOST.get(key, _MOST_OTHERS) for key, size in sizes.items())
        and sizes["text_width"] == sizes["d_model"]
        and filters == (sizes["num_mel_bins"], _FREQUENCIES)
    )
    if not is_whisper:
        raise UnsupportedModelError(
            f"{path}: a ggml file of another model than Whisper, or a damaged one; models of "
            "language are read in GGUF files"
        )
    return sizes, file_type // 1000 != _QUANT_VERSION


def _tokens(reader: ByteReader, most: int) -> list[bytes]:
    count = reader.number("i")
    if not 256 <= count <= most:
        raise reader.error(f"there are {count} tokens; 256 to {most} can be")
    found = []
    for token_id in range(count):
        length = reader.number("i")
        if not 0 <= length <= _MAX_TOKEN_BYTES:
            raise reader.error(f"token {token_id} has {length} bytes; at most {_MAX_TOKEN_BYTES}")
        found.append(reader.raw(length))
    return found


def _tensors(reader: ByteReader) -> dict[str, GgufTensor]:
    found: dict[str, GgufTensor] = {}
    while reader.position < reader.size:
        tensor = _tensor(reader)
        if tensor.name in found or len(found) >= _MOST_TENSORS:
            raise reader.error(f"tensor {quoted(tensor.name)} is there twice, or one too many")
        found[tensor.name] = tensor
        reader.skip(tensor.num_bytes)
    return found


def _tensor(reader: ByteReader) -> GgufTensor:
    num_dims, length, code = (reader.number("i") for _ in range(3))
    where = f"the tensor at {reader.position}"
    if not 1 <= num_dims <= _MAX_DIMS or not 1 <= length <= _MAX_NAME_BYTES:
        raise reader.error(f"{where} has {num_dims} dimensions, and a name of {length} bytes")
    sizes = [reader.number("i") for _ in range(num_dims)]
    raw = reader.raw(length)
    if not raw.isascii() or not raw.decode().isprintable():
        raise reader.error(f"{where} has the name {quoted(raw[:40])}, which must be ASCII")
    where, type = f"tensor {quoted(raw.decode())}", BLOCK_TYPES.get(code)
    if type is None or not type.is_of_weights:
        raise reader.error(f"{where} is of type {code}, which is not known")
    if not all(size > 0 for size in sizes) or sizes[0] % type.block_items:
        raise reader.error(f"{where} has the sizes {sizes}, which {type.name} cannot have")
    num_bytes = prod(sizes) // type.block_items * type.block_bytes
    return GgufTensor(raw.decode(), tuple(reversed(sizes)), type, reader.position, num_bytes)
