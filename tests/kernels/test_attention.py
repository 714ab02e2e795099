"""Paged attention against the reference: shapes, windows, caps, slopes, caches, long contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from harness import (
    Body,
    Floats,
    Weights,
    batch_of,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
)

from quire.backends.base import CompiledModel
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.program import ActivationBits, Attention, Linear, Op, Value

DIM = 64
F32, BF16 = 3e-6, 1.2e-2
INT8, BF16_INT8, INT8_A8, INT4 = 2e-3, 2e-2, 3e-2, 1.5e-1
"""Tolerances. A cache of integers may hold a neighbouring one where a number lies in the middle."""


@dataclass(frozen=True)
class Shape:
    """An attention, by what sets it apart."""

    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    activation_bits: ActivationBits = 16
    sinks: bool = False
    is_chunked: bool = False

    def body(self) -> Body:
        """Two layers, so that the cache of one cannot stand in for the other's."""

        def write(x: Value, weights: Weights) -> tuple[list[Op], Value]:
            ops: list[Op] = []
            out = x
            for layer in range(2):
                more, out = self.layer(out, weights, layer)
                ops += more
            return ops, out

        return write

    def layer(self, x: Value, weights: Weights, layer: int) -> tuple[list[Op], Value]:
        q = Value(f"q{layer}", self.heads * self.head_dim)
        k, v = (Value(f"{n}{layer}", self.kv_heads * self.head_dim) for n in "kv")
        weight = weights.param(f"qkv{layer}", (q.dim + k.dim + v.dim, x.dim), x.dim**-0.5)
        attended, out = Value(f"attended{layer}", q.dim), Value(f"out{layer}", DIM)
        slopes = tuple(0.5 ** (n + 1) for n in range(self.heads)) if self.alibi else None
        sinks = weights.param(f"sinks{layer}", (self.heads,), 2.0) if self.sinks else None
        return [
            Linear(x, (q, k, v), weight),
            Attention(
                q, k, v, attended, layer, self.heads, self.kv_heads, self.head_dim,
                self.head_dim**-0.5, self.window, self.softcap, slopes,
                self.activation_bits, sinks, self.is_chunked,
            ),
            Linear(attended, (out,), weights.param(f"o{layer}", (DIM, q.dim), q.dim**-0.5)),
        ], out  # fmt: skip


SHAPES = [
    Shape(),
    Shape(heads=7, kv_heads=1, head_dim=16),
    Shape(heads=3, kv_heads=3, head_dim=80),
    Shape(heads=2, kv_heads=2, head_dim=100),
    Shape(heads=4, kv_heads=2, head_dim=128),
    Shape(heads=2, kv_heads=1, head_dim=256),
    Shape(window=5),
    Shape(window=300),
    Shape(softcap=2.0),
    Shape(alibi=True),
    Shape(window=40, softcap=5.0, alibi=True),
    Shape(window=7, sinks=True),
    Shape(window=23, is_chunked=True),
    Shape(window=16, sinks=True, is_chunked=True),
]
LONG = [Shape(), Shape(window=300), Shape(window=310, is_chunked=True)]


def both(
    backend: CpuBackend, shape: Shape, dtype: str, kv_dtype: str
) -> tuple[CompiledModel, CompiledModel]:
    weights = Weights(7)
    program = program_of(shape.body(), DIM, weights)
    native, reference = (
        compile_on(b, program, weights, dtype, kv_dtype=kv_dtype)  # type: ignore[arg-type]
        for b in (backend, ReferenceBackend())
    )
    return native, reference


def compare(native: Floats, reference: Floats, tolerance: float) -> None:
    """The root mean square of each row's error, relative to the row's."""
    assert np.isfinite(native).all()
    error = np.sqrt(np.square(native - reference).mean(axis=1))
    worst = float((error / np.sqrt(np.square(reference).mean(axis=1))).max())
    assert worst <= tolerance, f"a row differs by {worst:.2e}"


def steps(models: Sequence[CompiledModel], plan: Sequence[Sequence[int]], tolerance: float) -> None:
    """plan[s][r]: tokens of request r in step s."""
    seqs = make_seqs([sum(counts) for counts in zip(*plan, strict=True)])
    for counts in plan:
        batch = batch_of([(q, n) for q, n in zip(seqs, counts, strict=True) if n])
        native, reference = (logits_of(model.step(batch)) for model in models)
        compare(native, reference, tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32(backend: CpuBackend, shape: Shape) -> None:
    models = both(backend, shape, "float32", "float32")
    steps(models, [[20, 1, 33], [1, 1, 1], [0, 40, 7], [1, 1, 1]], F32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16(backend: CpuBackend, shape: Shape) -> None:
    models = both(backend, shape, "bfloat16", "bfloat16")
    steps(models, [[20, 1, 33], [1, 1, 1], [0, 40, 7], [1, 1, 1]], BF16)


def int8_tolerance(backend: CpuBackend, dtype: str) -> float:
    """Tiers with products in bfloat16 use them for an int8 cache whatever the model's dtype."""
    narrow = dtype == "bfloat16" or "bf16" in isa_of(backend) or "amx" in isa_of(backend)
    return BF16_INT8 if narrow else INT8


def isa_of(backend: CpuBackend) -> str:
    return backend.capabilities.description.split("tier ")[1].split()[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_cache(backend: CpuBackend, shape: Shape, dtype: str) -> None:
    models = both(backend, shape, dtype, "int8")
    plan = [[20, 1, 33], [1, 1, 1], [0, 40, 7], [1, 1, 1]]
    steps(models, plan, int8_tolerance(backend, dtype))


@pytest.mark.parametrize(
    "shape",
    [*LONG, Shape(heads=2, head_dim=128)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_contexts_of_several_chunks(backend: CpuBackend, shape: Shape, dtype: str) -> None:
    models = both(backend, shape, dtype, "int8")
    plan = [[250, 700], [10, 1], [1, 1], [260, 30], [1, 1]]
    steps(models, plan, int8_tolerance(backend, dtype))


@pytest.mark.parametrize("shape", [*SHAPES, Shape(heads=2, head_dim=96)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int4_cache(backend: CpuBackend, shape: Shape, dtype: str) -> None:
    models = both(backend, shape, dtype, "int4")
    steps(models, [[20, 1, 33], [1, 1, 1], [0, 40, 7], [230, 300, 1], [1, 1, 1]], INT4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_cache_and_activations_of_8_bits(backend: CpuBackend, shape: Shape) -> None:
    models = both(backend, replace(shape, activation_bits=8), "bfloat16", "int8")
    steps(models, [[250, 1, 33], [1, 1, 1], [90, 40, 7], [1, 1, 1]], INT8_A8)


def test_activations_of_8_bits_matter_where_bytes_are_multiplied(backend: CpuBackend) -> None:
    [seq] = make_seqs([40])
    found = []
    for bits in (16, 8):
        native, _ = both(backend, Shape(activation_bits=bits), "bfloat16", "int8")
        seq.computed = 0
        found.append(logits_of(native.step(batch_of([(seq, 40)]))))
    multiplies_bytes = isa_of(backend) not in ("generic", "avx2", "amx")
    assert np.array_equal(*found) != multiplies_bytes


@pytest.mark.parametrize(
    "shape",
    [*LONG, Shape(heads=2, head_dim=128)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contexts_of_several_chunks(backend: CpuBackend, shape: Shape, dtype: str) -> None:
    models = both(backend, shape, dtype, dtype)
    plan = [[250, 700], [10, 1], [1, 1], [260, 30], [1, 1]]
    steps(models, plan, F32 if dtype == "float32" else BF16)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("shape", LONG)
def test_rows_whose_logits_are_wanted_do_not_miss_the_others(
    backend: CpuBackend, shape: Shape, kv_dtype: str
) -> None:
    """The last attention computes wanted rows only; no bit of them, or of K and V, tells."""
    native, _ = both(backend, shape, "bfloat16", kv_dtype)
    seqs = make_seqs([701, 40, 3])
    work = [(seq, count) for seq, count in zip(seqs, (700, 39, 2), strict=True)]
    everything = batch_of(work)
    expected = logits_of(native.step(everything))
    later = batch_of([(seq, 1) for seq in seqs])
    expected_later = logits_of(native.step(later))
    for wanted in ([], [699], [698, 699, 738], [740, 12, 13, 14, 300, 700], list(range(741))):
        rows = np.array(wanted, np.int32)
        found = logits_of(native.step(replace(everything, logits_rows=rows)))
        assert found.tobytes() == expected[rows].tobytes()
    assert logits_of(native.step(later)).tobytes() == expected_later.tobytes()


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_cache_of_another_type(backend: CpuBackend, dtype: str, kv_dtype: str) -> None:
    models = both(backend, Shape(), dtype, kv_dtype)
    steps(models, [[40, 3], [1, 300]], BF16)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
def test_a_coded_token_without_a_number_stays_alone(
    backend: CpuBackend, bits: ActivationBits, kv_dtype: str
) -> None:
    """A token whose k and v are NaN reaches those behind it, and no token before it."""
    weights = Weights(7)
    program = program_of(Shape(activation_bits=bits).body(), DIM, weights)
    table = weights.arrays["table"]
    table[15] = np.nan
    native = compile_on(backend, program, weights, kv_dtype=kv_dtype)
    [seq] = make_seqs([30])
    seq.tokens[:] = np.arange(30) % 15
    expected = logits_of(native.step(batch_of([(seq, 30)])))
    seq.tokens[20], seq.computed = 15, 0
    found = logits_of(native.step(batch_of([(seq, 30)])))
    assert found[:20].tobytes() == expected[:20].tobytes()
    assert np.isnan(found[20:]).all()


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "int4"])
def test_a_token_without_a_number_is_forgotten_behind_its_window(
    backend: CpuBackend, kv_dtype: str
) -> None:
    """Rows that see nothing of a chunk of 256 are untouched by what is in it."""
    weights = Weights(7)
    shape = Shape(window=20)
    program = program_of(lambda x, w: shape.layer(x, w, 0), DIM, weights)
    weights.arrays["table"][15] = np.nan
    native = compile_on(backend, program, weights, kv_dtype=kv_dtype)
    [seq] = make_seqs([300])
    seq.tokens[:] = np.arange(300) % 15
    expected = logits_of(native.step(batch_of([(seq, 300)])))
    seq.tokens[250], seq.computed = 15, 0
    found = logits_of(native.step(batch_of([(seq, 300)])))
    assert np.isnan(found[250:269]).all()
    assert found[275:].tobytes() == expected[275:].tobytes()


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "int8"),
        ("bfloat16", "int4"),
    ],
)
def test_what_an_earlier_owner_left_in_a_block_harms_nobody(
    backend: CpuBackend, dtype: str, kv_dtype: str
) -> None:
    """Blocks full of NaN, as after a request whose numbers overflowed."""
    native, reference = both(backend, Shape(), dtype, kv_dtype)
    [seq] = make_seqs([21])
    poison = np.full_like(native.read_blocks(seq.blocks), 0xFF)
    native.write_blocks(seq.blocks, poison)
    for count in (5, 1, 15):
        batch = batch_of([(seq, count)])
        compare(
            logits_of(native.step(batch)),
            logits_of(reference.step(batch)),
            {"float32": F32, "int4": INT4}.get(kv_dtype, BF16_INT8),
        )
