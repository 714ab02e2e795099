"""Experts, recurrent layers, latent attention and small ops: the kernels in Triton's interpreter
against their twins, and the row rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_model import RandomStore
from triton_interpreter import InterpretedDevice

from quire.backends.base import CompiledModel, CompileOptions, KVCacheSpec, StepBatch
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.lowering import attention, linear
from quire.backends.cuda.lowering.layers import experts, latent, recurrent, route
from quire.program import (
    Builder,
    ExpertTensors,
    HeadLayout,
    Out,
    Program,
    Routing,
    Tensor,
    keep_all,
)
from quire.program.passes import run_passes
from quire.program.values import WeightFormat
from quire.weights import HostTensor

OPTIONS = CompileOptions("bfloat16", max_num_tokens=96, max_num_seqs=4, max_model_len=32)
VOCABULARY, WIDTH = 40, 32
LENGTHS = (19, 3, 17)
TOKENS = [np.random.default_rng(i).integers(0, VOCABULARY, n) for i, n in enumerate(LENGTHS)]
Change = Callable[[Builder, Any], Any]


class SmallNumbers(RandomStore):
    """Weights of about the size that models have."""

    def get(self, name: str) -> HostTensor:
        found = super().get(name)
        numbers = found.data.view(np.float32) * np.float32(0.3)
        return replace(found, data=numbers.view(np.uint8))


def linears(b: Builder, x: Any, /, **dims: int) -> list[Any]:
    return list(b.linears(x, [Out(n, n, d) for n, d in dims.items()], hint="in"))


def mixture(
    b: Builder, x: Any, routing: Routing, *, count: int = 7, bias: bool = False, **more: Any
) -> Any:
    """Experts of 12 numbers."""
    is_gated, with_biases = more.pop("gated", True), more.pop("biases", False)
    rows = 24 if is_gated else 12
    logits = b.linear(x, "router", count, bias=False, hint="router")
    routes = b.route(logits, routing, Tensor("choice", (count,)) if bias else None)
    weights = ExpertTensors(
        tuple(Tensor(f"e{i}.in", (rows, WIDTH)) for i in range(count)),
        tuple(Tensor(f"e{i}.out", (WIDTH, 12)) for i in range(count)),
        12,
        tuple(Tensor(f"e{i}.in_bias", (rows,)) for i in range(count)) if with_biases else (),
        tuple(Tensor(f"e{i}.out_bias", (WIDTH,)) for i in range(count)) if with_biases else (),
        gated=is_gated,
    )
    return b.experts(x, routes, weights, routing.top_k, more.pop("act", "silu"), **more)


def delta(b: Builder, x: Any, *, by_row: bool = False, is_tiled: bool = False) -> Any:
    """Four heads of 8 and 2 key heads of 12 numbers."""
    decays = 4 * 12 if by_row else 4
    q, k, v, a, beta = linears(b, x, q=24, k=24, v=32, a=decays, b=4)
    return b.gated_delta(
        (q, k, v), a, beta, num_heads=4, num_key_heads=2, a_log=Tensor("a_log", (4,)),
        dt_bias=Tensor("dt_bias", (decays,)), is_tiled=is_tiled,
    )  # fmt: skip


def ssd(b: Builder, x: Any) -> Any:
    inner, dt, keys, queries = linears(b, x, x=32, dt=2, b=20, c=20)
    return b.ssd(inner, dt, (keys, queries), 2, "ssd.", (0.3, 0.9))


def mamba(b: Builder, x: Any) -> Any:
    inner, dt, keys, queries = linears(b, x, x=32, dt=32, b=9, c=9)
    return b.mamba(inner, dt, (keys, queries), "mamba.")


def conv(b: Builder, x: Any) -> Any:
    first, second = b.causal_conv(x, "conv", 4, {"a": 20, "b": 12}, bias=True, act="silu")
    return b.linear(b.join_heads(first, second, 1, "joined"), "o", WIDTH, bias=False, hint="o")


def latent_attention(b: Builder, x: Any) -> Any:
    """Three heads, rows of 20 + 4 numbers."""
    nope, rope, row, key = linears(b, x, qn=30, qr=12, c=20, kr=4)
    parts = [Tensor(f"absorb{i}", (20, 10)) for i in range(3)]
    absorbed = b.head_linear(nope, parts, (3, 20, 10), "absorbed")
    q, k = b.join_heads(absorbed, rope, 3, "q"), b.join_heads(row, key, 1, "k")
    mixed = b.attention(q, k, None, HeadLayout(3, 1, 24), latent_dim=20)
    return b.linear(mixed, "o", WIDTH, bias=False, hint="o")


CASES: dict[str, Change] = {
    "experts": lambda b, x: mixture(b, x, Routing(2)),
    "experts of groups": lambda b, x: mixture(
        b, x, Routing(3, "sigmoid", True, 4, 2, 2, 1e-9, 1.5), count=8, bias=True, biases=True
    ),
    "experts by sparsemixer": lambda b, x: mixture(b, x, Routing(2, "sparsemixer", jitter=0.1)),
    "weighed inputs": lambda b, x: mixture(
        b, x, Routing(1, "sigmoid", False), weighs_inputs=True, gated=False, act="relu2"
    ),
    "gated delta": delta,
    "gated delta by row": lambda b, x: delta(b, x, by_row=True, is_tiled=True),
    "mamba 2": ssd,
    "mamba 1": mamba,
    "convolution": conv,
    "latent": latent_attention,
}
QUANTISED: dict[str, tuple[Change, dict[str, Any]]] = {
    "latent, int8 cache": (latent_attention, {"kv_dtype": "int8"}),
    "latent, fp8 cache": (latent_attention, {"kv_dtype": "fp8"}),
    "experts in int8": (
        lambda b, x: mixture(b, x, Routing(2), biases=True), {"weights": "int8"}
    ),
    "experts in int8_w8a8": (lambda b, x: mixture(b, x, Routing(2)), {"weights": "int8_w8a8"}),
    "weighed inputs in int4_w4a8": (CASES["weighed inputs"], {"weights": "int4_w4a8"}),
}  # fmt: skip
"""With formats of weights and of the KV cache."""
ALL: dict[str, tuple[Change, dict[str, Any]]] = {
    **{name: (change, {}) for name, change in CASES.items()}, **QUANTISED
}  # fmt: skip
SMALL: dict[str, Change] = {
    "xielu": lambda b, x: b.xielu(x, "positive", "negative"),
    "outliers": lambda b, x: b.outliers(x, 0.4),
    "match rms": lambda b, x: b.match_rms(x, b.scale(b.act(x, "silu"), 3.0), 1e-5),
    "between": lambda b, x: b.between(x, "limit", "limited"),
    "token types": lambda b, x: b.token_types(x, Tensor("types", (2, WIDTH))),
    "slices": lambda b, x: b.add(
        x, b.embed_slices([Tensor("slices", (VOCABULARY, 2 * WIDTH))], WIDTH, "slices", 0.5)[1]
    ),
    "means": lambda b, x: b.mean_rows(x),
}


def program(change: Change, weights: WeightFormat | None = None) -> Program:
    builder = Builder("one layer")
    x = builder.embed(Tensor("embed.weight", (VOCABULARY, WIDTH)), scale=3.0)
    x = change(builder, x)
    builder.logits(x, Tensor("head.weight", (VOCABULARY, WIDTH)))
    return run_passes(builder.program(), weights)


def compiled(
    of: Program, device: EmulatedDevice, dtype: str, kv_dtype: str | None = None
) -> CompiledModel:
    backend = CudaBackend(device)
    kv = backend.sized(of, KVCacheSpec(24, 16, kv_dtype or dtype, keep_all(of)))
    options = replace(OPTIONS, dtype=dtype)
    return backend.compile(of, SmallNumbers(of), kv, options)


def logits(model: CompiledModel, of: Program, *parts: tuple[int, int, int]) -> NDArray[np.float32]:
    """(request, first position, end) of each request of a step."""
    counts = [end - begin for _, begin, end in parts]
    groups = len(keep_all(of).groups)
    blocks = [[5 * r + 3, 5 * r, 5 * r + 2, 5 * r + 1] for r, _, _ in parts]
    step = StepBatch(
        token_ids=np.concatenate([TOKENS[r][b:e] for r, b, e in parts]).astype(np.int32),
        positions=np.concatenate([np.arange(b, e) for _, b, e in parts]).astype(np.int32),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        context_lens=np.array([e for _, _, e in parts], np.int32),
        block_tables=np.array([[own] * groups for own in blocks], np.int32).reshape(
            len(parts), groups, 4
        ),
        logits_rows=np.arange(sum(counts), dtype=np.int32),
        sampling=None,
        want_logits=True,
    )
    found = model.step(step).logits
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks are small, so that there are several."""
    for module in (linear, experts):
        for name, size in (("BLOCK_M", 16), ("BLOCK_N", 32), ("TILES", None)):
            value = {"bf16": (16, 3), "fp32": (16, 2)} if size is None else size
            monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setattr(linear, "CHUNK", 16)
    monkeypatch.setattr(linear, "UNEVEN_K", 8)
    monkeypatch.setattr(route, "BLOCKS", (8, 16))
    monkeypatch.setattr(route, "_PAIRS", 16)
    for name, size in (("BLOCK_M", 16), ("CHUNK", 16)):
        monkeypatch.setattr(attention, name, size)
    for name, size in (("TILE", 8), ("VALUE", 16), ("STEP", 8), ("WIDTH", 32)):
        monkeypatch.setattr(latent, name, size)
    for name in ("KEY_SIZES", "STATE_SIZES"):
        monkeypatch.setattr(recurrent, name, (16,))
    monkeypatch.setattr(recurrent, "CHANNELS_OF_PROGRAM", 16)
    monkeypatch.setattr(recurrent, "VALUES_OF_PROGRAM", 8)


def near(found: NDArray[np.float32], wanted: NDArray[np.float32], dtype: str) -> bool:
    limit = 1e-4 if dtype == "float32" else 3e-2
    return bool(np.abs(found - wanted).max() <= limit * np.abs(wanted).max())


@pytest.mark.sweep(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_kernels_are_like_their_twins(name: str, dtype: str) -> None:
    change, formats = ALL[name]
    of, kv_dtype = program(change, formats.get("weights")), formats.get("kv_dtype")
    devices = InterpretedDevice(), EmulatedDevice()
    models = [compiled(of, device, dtype, kv_dtype) for device in devices]
    steps: Sequence[Sequence[tuple[int, int, int]]] = (
        [(0, 0, 9), (1, 0, 3)], [(0, 9, 18), (2, 0, 2)],
    )  # fmt: skip
    for step in steps:
        found, wanted = (logits(model, of, *step) for model in models)
        assert near(found, wanted, dtype)


@pytest.mark.parametrize("name", SMALL)
def test_small_ops_are_like_their_twins(name: str) -> None:
    of = program(SMALL[name])
    found, wanted = (
        logits(compiled(of, device, "float32"), of, (1, 0, 3), (0, 0, 19))
        for device in (InterpretedDevice(), EmulatedDevice())
    )
    assert near(found, wanted, "float32")


@pytest.mark.sweep(6)
@pytest.mark.parametrize("device", [InterpretedDevice, EmulatedDevice])
@pytest.mark.parametrize("name", ALL)
def test_a_row_has_the_same_bits_in_any_step(name: str, device: type[EmulatedDevice]) -> None:
    change, formats = ALL[name]
    of = program(change, formats.get("weights"))
    model = compiled(of, device(), "bfloat16", formats.get("kv_dtype"))
    first, second = (logits(model, of, (r, 0, n)) for r, n in enumerate(LENGTHS[:2]))
    together = logits(model, of, (0, 0, 15), (1, 0, 2))
    assert together.tobytes() == np.concatenate([first[:15], second[:2]]).tobytes()
    rest = logits(model, of, (1, 2, 3), (0, 15, 18))
    assert rest.tobytes() == np.concatenate([second[2:], first[15:18]]).tobytes()
    assert logits(model, of, (0, 18, 19)).tobytes() == first[18:].tobytes()
