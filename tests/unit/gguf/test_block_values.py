"""The values of every block type, bit for bit beside gguf-py's."""

from __future__ import annotations

import numpy as np
import pytest

from quire.gguf.block_types import BLOCK_TYPES, block_values

gguf = pytest.importorskip("gguf")

_BY_NAME = {type.name: type for type in BLOCK_TYPES.values()}
READABLE = {name for name, type in _BY_NAME.items() if type.is_of_weights}


def test_sizes_are_those_of_gguf_py() -> None:
    for code, type in BLOCK_TYPES.items():
        theirs = gguf.GGMLQuantizationType(code)
        assert type.name == theirs.name
        assert (type.block_items, type.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_every_type_that_gguf_py_dequantizes_is_read() -> None:
    theirs = {type.name for type in gguf.quants._type_traits} | {"F32", "F16", "F64"}
    assert theirs & _BY_NAME.keys() <= READABLE


@pytest.mark.parametrize("name", sorted(READABLE - {"F64"}))
def test_values_are_those_of_gguf_py(name: str) -> None:
    """Random bytes are valid blocks; more of them than are computed at a time."""
    type = _BY_NAME[name]
    count = 3 * (1 << 18) // type.block_bytes // 2 + 5
    raw = np.random.default_rng(7).integers(0, 256, (count, type.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    found = block_values(name, raw)
    assert found.shape == (count, type.block_items)
    same = found.view(np.uint32) == wanted.reshape(found.shape).view(np.uint32)
    assert np.all(same | (np.isnan(found) & np.isnan(wanted.reshape(found.shape))))


def test_numbers_of_64_bits_are_narrowed() -> None:
    values = np.array([1.5, -2.0, 1e300], np.float64)
    found = block_values("F64", values.view(np.uint8).reshape(3, 8))
    assert found.ravel().tolist() == [1.5, -2.0, np.inf]
