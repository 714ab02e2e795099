"""Weights of codes: kernels and twins against the reference, and the row rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grouped_harness import GroupedStore, one_linear, random_groups
from harness import Weights, batch_of, logits_of, make_seqs, program_of
from triton_interpreter import InterpretedDevice

from quire.backends.base import Backend, CompiledModel, CompileOptions, Dtype, KVCacheSpec
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.lowering import linear
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.gguf.block_types import BY_NAME, block_values
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.program import Linear, Op, Param, Program, Tensor, Value, keep_all
from quire.program.values import GroupedFormat, WeightFormat
from quire.weights import WeightStore

OWN = ["int8", "int8_w8a8", "int4", "int4_w4a8"]
GROUPED = [
    GroupedFormat("u4", 32, has_zeros=True),
    GroupedFormat("u4", 64, has_zeros=True, has_order=True),
    GroupedFormat("u4", 16, has_zeros=True),
    GroupedFormat("s4", 128),
    GroupedFormat("u4", 32, has_minima=True, scale="f16"),
    GroupedFormat("e2m1", 32),
    GroupedFormat("e2m1", 16, scale="e4m3"),
    GroupedFormat("iq4", 32, scale="f16"),
    GroupedFormat("s8", 128),
    GroupedFormat("s6", 16),
    GroupedFormat("u5", 32, has_minima=True),
    GroupedFormat("e4m3", 128),
    GroupedFormat("s4", 32, activation_bits=8),
    GroupedFormat("u4", 32, has_minima=True, activation_bits=8, activation_blocks=True),
]
FORMATS = [*OWN, *GROUPED]
DEVICES = [InterpretedDevice, EmulatedDevice]
LENGTHS = [1, 16]


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks are small, so that there are several."""
    for name, size in (("BLOCK_M", 16), ("BLOCK_N", 32), ("CHUNK", 64)):
        monkeypatch.setattr(linear, name, size)


def case(format: Any, k: int, n: int) -> tuple[Program, WeightStore]:
    """A program of one product."""
    weights = Weights()
    if isinstance(format, GroupedFormat):
        groups = {"w": random_groups(format, n, k)}
        groups["w"].codes[groups["w"].codes & 127 == 127] = 0
        return program_of(one_linear(groups), k, weights), GroupedStore(weights, groups)

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        out, param = Value("out", n), weights.param("w", (n, k), k**-0.5)
        return [Linear(x, (out,), replace(param, format=format))], out

    return program_of(body, k, weights), GroupedStore(weights, {})


def compiled(
    backend: Backend, of: tuple[Program, WeightStore], dtype: Dtype = "float32"
) -> CompiledModel:
    program, store = of
    options = CompileOptions(dtype, max_num_tokens=64, max_num_seqs=8, max_model_len=64)
    return backend.compile(program, store, KVCacheSpec(256, 16, dtype, keep_all(program)), options)


def logits(model: CompiledModel, lengths: list[int]) -> Any:
    seqs = make_seqs(lengths)
    return logits_of(model.step(batch_of([(seq, len(seq.tokens)) for seq in seqs])))


def differs(found: Any, wanted: Any) -> float:
    return float((np.abs(found - wanted) / np.abs(wanted).max(axis=1, keepdims=True)).max())


@pytest.mark.sweep(9)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_product_is_that_of_the_reference(format: Any, device: type[EmulatedDevice]) -> None:
    """Activations of 16 bits are not rounded here, and are there."""
    dtypes: tuple[tuple[Dtype, int, float], ...] = ("float32", 80, 2e-4), ("bfloat16", 136, 2e-2)
    for dtype, k, limit in dtypes:
        of = case(format, k, 33)
        wanted = logits(compiled(ReferenceBackend(), of), LENGTHS)
        assert differs(logits(compiled(CudaBackend(device()), of, dtype), LENGTHS), wanted) <= limit


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["int8_w8a8", "int4_w4a8"])
def test_outliers_have_16_bits(format: WeightFormat, device: type[EmulatedDevice]) -> None:
    """Rows with one to six large columns, of which four at most are outliers; in some of them one
    is far larger. With chunks that are divided among programs, and with chunks that are not."""
    program, store = case(format, 160, 33)
    table = store.weights.arrays["table"]  # type: ignore[attr-defined]
    tokens = np.unique(np.concatenate([seq.tokens for seq in make_seqs(LENGTHS)]))
    for first, count in enumerate((1, 4, 6)):
        table[tokens[first::3, None], np.arange(count) * 26 + 3] *= np.float32(40)
    table[tokens[::2], 5] *= np.float32(9000)
    wanted = logits(compiled(ReferenceBackend(), (program, store)), LENGTHS)
    model = compiled(CudaBackend(device()), (program, store))
    assert differs(logits(model, LENGTHS), wanted) <= 2e-4
    assert logits(model, [30])[:16].tobytes() == logits(model, [16]).tobytes()


@pytest.mark.sweep(9)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_row_has_the_same_bits_in_any_step(format: Any, device: type[EmulatedDevice]) -> None:
    """Alone, with chunks that are divided among programs, or in a large step."""
    model = compiled(CudaBackend(device()), case(format, 160, 33), "bfloat16")
    together = logits(model, [3, 30])
    assert logits(model, [3]).tobytes() == together[:3].tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", [one for one in FORMATS if "order" not in str(one)], ids=str)
def test_a_table_that_is_the_head_too(format: Any, device: type[EmulatedDevice]) -> None:
    weights, k = Weights(), 96
    program = program_of(lambda x, _weights: ([], x), k, weights)
    *ops, head = program.ops
    groups = {}
    if isinstance(format, GroupedFormat):
        groups = {"table": random_groups(format, 96, k)}
        groups["table"].codes[groups["table"].codes & 127 == 127] = 0
        del weights.arrays["table"]
    table = replace(ops[0].table, format=format)  # type: ignore[attr-defined]
    tied = replace(head, weight=table, out=Value("logits", 96))  # type: ignore[call-arg]
    first = replace(ops[0], table=table, scale=1.5)  # type: ignore[call-arg]
    of = replace(program, ops=(first, *ops[1:], tied)), GroupedStore(weights, groups)
    wanted = logits(compiled(ReferenceBackend(), of), LENGTHS)
    assert differs(logits(compiled(CudaBackend(device()), of), LENGTHS), wanted) <= 2e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["int8", "int4_w4a8", GROUPED[0], GROUPED[-1]], ids=str)
def test_what_is_not_finite_stays_in_its_row(format: Any, device: type[EmulatedDevice]) -> None:
    program, store = case(format, 160, 33)
    tokens = make_seqs([17])[0].tokens
    store.weights.arrays["table"][tokens[4], 7] = np.inf  # type: ignore[attr-defined]
    found = logits(compiled(CudaBackend(device()), (program, store), "bfloat16"), [17])
    assert (~np.isfinite(found)).any(axis=1).tolist() == (tokens == tokens[4]).tolist()


class AlignedDevice(EmulatedDevice):
    """Checks that arguments are what a kernel was compiled for."""

    def launch(self, launch: Launch) -> None:
        values = [launch.args[name] for name in launch.kernel.aligned_names]
        numbers = [one if isinstance(one, int | float) else one.begin for one in values]
        assert not launch.kernel.is_aligned or all(one % 16 == 0 for one in numbers)
        super().launch(launch)


@pytest.mark.parametrize("format", ["dense", *FORMATS], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_any_length_are_aligned(format: Any, dtype: Dtype) -> None:
    for k in (50, 64):
        of = case(format, k, 33)
        wanted = logits(compiled(ReferenceBackend(), of), LENGTHS)
        found = logits(compiled(CudaBackend(AlignedDevice()), of, dtype), LENGTHS)
        assert differs(found, wanted) <= (2e-4 if dtype == "float32" else 2e-2)


def blocks_of(name: str, count: int) -> Any:
    """Random blocks of a GGUF type, with as many numbers."""
    kind = BY_NAME[name]
    shape = (count // kind.block_items, kind.block_bytes)
    data = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for at, given in kind.held.dummy.items() if kind.held else ():
        raw = given if isinstance(given, bytes) else np.float16(given).tobytes()
        data[:, at : at + len(raw)] = np.frombuffer(raw, np.uint8)
    return data


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_of_a_gguf_file(name: str, is_table: bool, device: type[EmulatedDevice]) -> None:
    """Held as they are, bit for bit: their products with rows of one 1, or their rows."""
    weights, n, k, format = Weights(), 96 if is_table else 16, 256, BLOCK_FORMATS[name]
    store, data = (
        GroupedStore(weights, {"held": random_groups(format, n, k)}),
        blocks_of(name, n * k),
    )
    store.blocks["held"] = name, data
    held = Param("held", (n, k), (Tensor("held", (n, k)),), format)

    def body(x: Value, _weights: Weights) -> tuple[list[Op], Value]:
        out = Value("out", n)
        return ([], x) if is_table else ([Linear(x, (out,), held)], out)

    program = program_of(body, k, weights)
    weights.arrays["table"] = np.eye(k, dtype=np.float32)
    tokens = np.concatenate([seq.tokens for seq in make_seqs(LENGTHS)])
    numbers = block_values(name, data).reshape(n, k)
    if is_table:
        first = replace(program.ops[0], table=held)  # type: ignore[call-arg]
        program = replace(program, ops=(first, *program.ops[1:]))
    found = logits(compiled(CudaBackend(device()), (program, store)), LENGTHS)
    np.testing.assert_array_equal(found, numbers[tokens] if is_table else numbers[:, tokens].T)


def test_a_format_that_no_kernel_reads_is_refused() -> None:
    for format in (GroupedFormat("nf4", 64), GroupedFormat("e4m3", 16)):
        with pytest.raises(BackendError, match=f"no weight format {format.table}"):
            compiled(CudaBackend(EmulatedDevice()), case(format, 128, 16))
