"""What the CPU backend makes of a program: which ops join, and where values lie."""

from __future__ import annotations

import itertools

from harness import Weights

from quire.backends.cpu.lowering import assign_storage, fuse
from quire.backends.cpu.lowering.ops.attention import NativeAttention
from quire.backends.cpu.lowering.ops.heads import NativeHeads
from quire.backends.cpu.lowering.ops.kernels import NativeKernel
from quire.backends.cpu.lowering.ops.linear import NativeLinear
from quire.backends.cpu.lowering.ops.norm import NativeNorm
from quire.program import (
    Add,
    Attention,
    Embed,
    Glu,
    HeadNorm,
    Linear,
    Logits,
    Op,
    Program,
    RmsNorm,
    Rope,
    TakeRows,
    Value,
)


def layer_program(*, keep_product: bool = False) -> Program:
    """One decoder layer. `keep_product`: the output projection is read twice, so cannot join."""
    w = Weights()
    v = {name: Value(name, dim) for name, dim in (
        ("x", 64), ("n1", 64), ("q", 64), ("k", 32), ("v", 32), ("qn", 64), ("kn", 32),
        ("qr", 64), ("kr", 32), ("a", 64), ("o", 64), ("x1", 64), ("n2", 64), ("gate", 128),
        ("up", 128), ("glu", 128), ("d", 64), ("x2", 64), ("twice", 64), ("t", 64), ("l", 96),
    )}  # fmt: skip
    ops: list[Op] = [
        Embed(v["x"], w.param("table", (96, 64))),
        RmsNorm(v["x"], v["n1"], w.param("w1", (64,)), 1e-6),
        Linear(v["n1"], (v["q"], v["k"], v["v"]), w.param("qkv", (128, 64))),
        HeadNorm(v["q"], v["qn"], w.param("qw", (32,)), 1e-6, 2, 32),
        HeadNorm(v["k"], v["kn"], w.param("kw", (32,)), 1e-6, 1, 32),
        Rope(v["qn"], v["qr"], 2, 32, (1.0, 0.1)),
        Rope(v["kn"], v["kr"], 1, 32, (1.0, 0.1)),
        Attention(v["qr"], v["kr"], v["v"], v["a"], 0, 2, 1, 32, 0.2),
        Linear(v["a"], (v["o"],), w.param("wo", (64, 64))),
        Add(v["x"], v["o"], v["x1"]),
        RmsNorm(v["x1"], v["n2"], w.param("w2", (64,)), 1e-6),
        Linear(v["n2"], (v["gate"], v["up"]), w.param("gu", (256, 64))),
        Glu(v["gate"], v["up"], v["glu"], "silu"),
        Linear(v["glu"], (v["d"],), w.param("wd", (64, 128))),
        Add(v["d"], v["o"] if keep_product else v["x1"], v["x2"]),
        TakeRows(v["x2"], v["t"]),
        Logits(v["t"], v["l"], w.param("head", (96, 64))),
    ]
    program = Program("layer", tuple(ops))
    program.check()
    return program


def test_a_decoder_layer_becomes_eight_ops() -> None:
    assert [op.struct for op in fuse(layer_program())] == [
        "embed", "norm", "linear", "heads", "attention", "linear", "norm", "linear", "linear",
        "take_rows", "logits",
    ]  # fmt: skip


def test_heads_carry_norm_rotation_and_target() -> None:
    [heads] = [op for op in fuse(layer_program()) if isinstance(op, NativeHeads)]
    assert [part.target for part in heads.parts] == ["view", "keys", "values"]
    assert [part.x.name for part in heads.parts] == ["q", "k", "v"]
    assert [part.norm is not None for part in heads.parts] == [True, True, False]
    assert [part.rotation is not None for part in heads.parts] == [True, True, False]
    [attention] = [op for op in fuse(layer_program()) if isinstance(op, NativeAttention)]
    assert attention.q == heads.parts[0].out


def test_residual_and_glu_join_their_products() -> None:
    products = [op for op in fuse(layer_program()) if isinstance(op, NativeLinear)]
    assert [p.weight.glu for p in products] == [False, False, True, False]
    assert [p.residual.name if p.residual else None for p in products] == [None, "x", None, "x1"]


def test_a_product_that_others_read_stays_alone() -> None:
    ops = fuse(layer_program(keep_product=True))
    products = [op for op in ops if isinstance(op, NativeLinear)]
    assert products[1].residual is None
    assert products[1].outs[0].name == "o"
    assert any(isinstance(op, NativeKernel) and isinstance(op.op, Add) for op in ops)


def test_the_residual_stream_is_float32_and_updated_in_place() -> None:
    ops = fuse(layer_program())
    places = {v.name: p for v, p in assign_storage(ops, "bfloat16", 8).places.items()}
    assert {places[name].dtype for name in ("x", "x1")} == {"float32"}
    assert {places[name].dtype for name in ("n1", "q", "qr", "a", "n2", "glu", "x2")} == {
        "bfloat16"
    }
    assert places["x"].offset_bytes == places["x1"].offset_bytes
    assert places["k"].offset_bytes == places["q"].offset_bytes + 64 * 2
    assert places["t"].rows == "logits"


def test_values_alive_together_do_not_overlap() -> None:
    ops = fuse(layer_program(keep_product=True))
    storage = assign_storage(ops, "float32", 8)
    last = {value: i for i, op in enumerate(ops) for value in (*op.reads, *op.writes)}
    for index, op in enumerate(ops):
        alive = {v for v in (*op.writes, *op.reads) if last[v] >= index}
        alive |= {v for earlier in ops[:index] for v in earlier.writes if last[v] >= index}
        spans = sorted(_span(storage.places[v]) for v in alive if not _shares(op, v))
        for (_, end), (begin, _) in itertools.pairwise(spans):
            assert end <= begin


def _span(place: object) -> tuple[int, int]:
    """Of the first row: neighbours of one product share rows."""
    begin = place.offset_bytes  # type: ignore[attr-defined]
    return begin, begin + place.dim * 4  # type: ignore[attr-defined]


def _shares(op: object, value: Value) -> bool:
    """A product may write over the residual that it adds."""
    return isinstance(op, NativeLinear | NativeNorm) and op.residual == value
