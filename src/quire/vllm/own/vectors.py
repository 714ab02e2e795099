"""Helpers that scripts import from vLLM for vectors: printing them, reading the bytes in which a
server sends them, and writing prompt embeddings. Tensors are torch's, if it is installed."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

import numpy as np

from quire.server.generation.pooling import EmbedDtype, Endianness


@dataclass(frozen=True)
class DTypeInfo:
    """A dtype of the field `embed_dtype`."""

    name: str
    nbytes: int
    numpy_view_dtype: str
    """The dtype of NumPy that has the bytes: it has no bfloat16."""

    @property
    def torch_dtype(self) -> Any:
        """The dtype of torch."""
        return getattr(import_module("torch"), self.name)


EMBED_DTYPES: dict[str, DTypeInfo] = {
    "float32": DTypeInfo("float32", 4, "f4"),
    "float16": DTypeInfo("float16", 2, "f2"),
    "bfloat16": DTypeInfo("bfloat16", 2, "i2"),
    "fp8_e4m3": DTypeInfo("float8_e4m3fn", 1, "u1"),
    "fp8_e5m2": DTypeInfo("float8_e5m2", 1, "u1"),
}
"""Values that the server accepts as `embed_dtype`."""
ENDIANNESS: tuple[Endianness, ...] = get_args(Endianness)
_ORDERS = {"native": "=", "little": "<", "big": ">"}


@dataclass
class MetadataItem:
    """Place of a vector in the body of a reply: an item of the header `metadata`."""

    index: int
    embed_dtype: EmbedDtype
    endianness: Endianness
    start: int
    end: int
    shape: tuple[int, ...]


def build_metadata_items(
    embed_dtype: EmbedDtype, endianness: Endianness, shape: tuple[int, ...], n_request: int
) -> list[MetadataItem]:
    """Return the items of `n_request` vectors of one shape, for a body without a header."""
    size = math.prod(shape) * EMBED_DTYPES[embed_dtype].nbytes
    return [
        MetadataItem(n, embed_dtype, endianness, n * size, (n + 1) * size, shape)
        for n in range(n_request)
    ]


def decode_pooling_output(items: Sequence[MetadataItem], body: bytes) -> list[Any]:
    """Return the vectors of a body as tensors, in the order of the requests' inputs."""
    return [
        binary2tensor(body[one.start : one.end], one.shape, one.embed_dtype, one.endianness)
        for one in sorted(items, key=lambda one: one.index)
    ]


def binary2tensor(
    binary: bytes, shape: Sequence[int], embed_dtype: EmbedDtype, endianness: Endianness
) -> Any:
    """Return the tensor whose numbers have these bytes."""
    dtype = EMBED_DTYPES[embed_dtype]
    found = np.frombuffer(binary, _ORDERS[endianness] + dtype.numpy_view_dtype)
    native = found.astype(dtype.numpy_view_dtype).reshape(shape)
    return import_module("torch").from_numpy(native).view(dtype.torch_dtype)


def tensor2base64(x: Any) -> str:
    """Return a tensor as the text that requests take as `prompt_embeds`: what torch saves."""
    buffer = io.BytesIO()
    import_module("torch").save(x, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def print_embeddings(embeds: list[float], prefix: str = "Embeddings") -> None:
    """Print the first four numbers of a vector, and how many it has."""
    numbers = f"{str(embeds[:4])[:-1]}, ...]" if len(embeds) > 4 else str(embeds)
    print(f"{prefix}: {numbers} (size={len(embeds)})")
