"""Random weights in the formats of quantised checkpoints and GGUF files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.gguf.block_types import block_values
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.program import Builder, Out, Program, Tensor
from quire.program.ops import Linear
from quire.program.values import GroupedFormat
from quire.weights.dummy import DummyStore

ROWS, DEPTH = 96, 512
SHIPPED = {
    "awq": GroupedFormat("u4", 128, has_zeros=True),
    "symmetric": GroupedFormat("s4", 32),
    "int8": GroupedFormat("s8", 128, activation_bits=8),
    "mxfp4": GroupedFormat("e2m1", 32),
    "nested, of 8-bit activations": replace(
        BLOCK_FORMATS["Q4_K"], activation_bits=8, activation_blocks=True
    ),
    "minima": GroupedFormat("u4", 64, has_minima=True, scale="f16"),
    "fp8": GroupedFormat("e4m3", 128),
    "nf4": GroupedFormat("nf4", 64),
    "act-order": GroupedFormat("u4", 128, has_zeros=True, has_order=True),
    "nvfp4 in an order": GroupedFormat("e2m1", 16, scale="e4m3", has_order=True),
}


def _program(format: GroupedFormat, rows: int = ROWS, depth: int = DEPTH) -> Program:
    """Two matrices of the format."""
    builder = Builder("two")
    table = Tensor("table", (40, depth))
    x = builder.embed(table)
    (y,) = builder.linears(x, [Out("a", "a", rows, False)], hint="a")
    (z,) = builder.linears(y, [Out("b", "b", depth, False)], hint="b")
    builder.logits(z, Tensor("head", (40, depth)))
    program = builder.program()
    ops = tuple(
        replace(op, weight=replace(op.weight, format=format))
        if isinstance(op, Linear) and op.weight.shape == (rows, depth)
        else op
        for op in program.ops
    )
    return replace(program, ops=ops)


def _is_like_weights(values: NDArray[np.float32]) -> bool:
    return bool(
        np.isfinite(values).all()
        and 0.01 < values.std() < 0.04
        and abs(float(values.mean())) < 0.006
    )


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_of_a_type(name: str) -> None:
    program = _program(BLOCK_FORMATS[name])
    tensor = DummyStore(program).stored("a.weight")
    kind = tensor.block_type
    assert kind is not None
    assert kind.name == name
    assert tensor.data.nbytes == ROWS * DEPTH // kind.block_items * kind.block_bytes
    values = block_values(name, tensor.data.reshape(-1, kind.block_bytes)).reshape(tensor.shape)
    assert _is_like_weights(values)
    assert len(np.unique(values, axis=0)) == ROWS
    again = DummyStore(program).stored("a.weight")
    assert np.array_equal(again.data, tensor.data)
    found = DummyStore(program).get("a.weight")
    assert found.format == (None if BLOCK_FORMATS[name].scale == "nested" else BLOCK_FORMATS[name])
    assert _is_like_weights(found.to_float32())


@pytest.mark.parametrize("format", SHIPPED.values(), ids=SHIPPED)
def test_groups_of_a_format(format: GroupedFormat) -> None:
    store = DummyStore(_program(format))
    values = store.get("a.weight").to_float32()
    assert values.shape == (ROWS, DEPTH)
    assert _is_like_weights(values)
    assert len(np.unique(values, axis=0)) == ROWS
    held = store.stored("a.weight").format
    assert held == format
    assert store.stored("b.weight").format is None


def test_a_matrix_larger_than_the_pool() -> None:
    rows, depth = 8192, 1024
    store = DummyStore(_program(BLOCK_FORMATS["Q4_0"], rows, depth))
    tensor = store.stored("a.weight")
    assert tensor.data.nbytes == rows * depth // 32 * 18
    first = tensor.data[: depth // 32 * 18]
    assert not np.array_equal(first, tensor.data[first.size : 2 * first.size])


def test_rows_that_are_no_whole_blocks() -> None:
    store = DummyStore(_program(BLOCK_FORMATS["Q6_K"], depth=384))
    with pytest.raises(
        CheckpointError, match=r"rows of 384 numbers; Q6_K .* multiple of 256; .*Q8_0"
    ):
        store.stored("a.weight")
