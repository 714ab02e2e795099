"""Each kernel in Triton's interpreter against its twin, and the row rule."""

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
from quire.backends.kv_formats import narrow_to_bfloat16
from quire.program import Builder, HeadLayout, Out, Program, Rotary, Tensor, keep_all
from quire.program.passes import run_passes
from quire.weights import HostTensor

OPTIONS = CompileOptions("bfloat16", max_num_tokens=96, max_num_seqs=4, max_model_len=32)
VOCABULARY = 40
HEADS = HeadLayout(num_heads=4, num_kv_heads=2, head_dim=8)
Change = Callable[[Builder, Any], Any]


def program(
    change: Change | None = None,
    *,
    heads: HeadLayout = HEADS,
    window: int | None = None,
    **attention: Any,
) -> Program:
    """One layer: embedding, norm, projections, head norms, rotation, attention and a gated MLP.
    `change` adds an op."""
    builder = Builder("one layer")
    width = heads.num_heads * heads.head_dim
    x = builder.embed(Tensor("embed.weight", (VOCABULARY, width)))
    normed = builder.rms_norm(x, "norm", 1e-6)
    kv_width = heads.num_kv_heads * heads.head_dim
    outs = [Out(n, n, d, bias=True) for n, d in (("q", width), ("k", kv_width), ("v", kv_width))]
    q, k, v = builder.linears(normed, outs, hint="qkv")
    rotary = Rotary(tuple(0.5**i for i in range(heads.head_dim // 2)))
    q, k = (
        builder.rope(q, heads.head_dim, rotary, "q"),
        builder.rope(k, heads.head_dim, rotary, "k"),
    )
    attended = builder.attention(q, k, v, heads, window=window, **attention)
    x = builder.add(x, builder.linear(attended, "o", width, bias=False, hint="o"))
    if change is not None:
        x = change(builder, x)
    builder.logits(x, Tensor("head.weight", (VOCABULARY, width)))
    return run_passes(builder.program(), None)


def compiled(
    of: Program, device: EmulatedDevice, kv_dtype: str | None = None, **changes: Any
) -> CompiledModel:
    options = replace(OPTIONS, **changes)
    kv_dtype = kv_dtype or ("bfloat16" if options.dtype == "bfloat16" else "float32")
    kv = KVCacheSpec(24, 16, kv_dtype, keep_all(of))
    return CudaBackend(device).compile(of, SmallNumbers(of), kv, options)


class SmallNumbers(RandomStore):
    """Weights of about the size that models have, so that softmax weights are not 0 and 1."""

    def get(self, name: str) -> HostTensor:
        found = super().get(name)
        numbers = found.data.view(np.float32) * np.float32(0.2)
        return replace(found, data=numbers.view(np.uint8))


LENGTHS = (24, 3, 17)
BLOCKS = np.array([3, 1])
TOKENS = [np.random.default_rng(i).integers(0, VOCABULARY, n) for i, n in enumerate(LENGTHS)]


def batch(parts: Sequence[tuple[int, int, int]]) -> StepBatch:
    """(request, first position, end) of each request of a step; all logits are wanted."""
    counts = [end - begin for _, begin, end in parts]
    return StepBatch(
        token_ids=np.concatenate([TOKENS[r][b:e] for r, b, e in parts]).astype(np.int32),
        positions=np.concatenate([np.arange(b, e) for _, b, e in parts]).astype(np.int32),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        context_lens=np.array([e for _, _, e in parts], np.int32),
        block_tables=np.array(
            [[[5 * r + 3, 5 * r, 5 * r + 2, 5 * r + 1]] for r, _, _ in parts], np.int32
        ),
        logits_rows=np.arange(sum(counts), dtype=np.int32),
        sampling=None,
        want_logits=True,
    )


def logits(model: CompiledModel, *parts: tuple[int, int, int]) -> NDArray[np.float32]:
    found = model.step(batch(parts)).logits
    assert found is not None
    return found


def alone(model: CompiledModel) -> list[NDArray[np.float32]]:
    """The logits of each request, computed whole and alone."""
    return [logits(model, (r, 0, n)) for r, n in enumerate(LENGTHS)]


ALIBI = tuple(0.5**i for i in range(4))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "float32": {"dtype": "float32"},
    "int8 cache": {"kv_dtype": "int8"},
    "fp8 cache": {"kv_dtype": "fp8"},
    "fp8 cache, float32": {"kv_dtype": "fp8", "dtype": "float32"},
    "int8 cache, float32": {"kv_dtype": "int8", "dtype": "float32"},
    "window": {"window": 9},
    "softcap": {"softcap": 5.0},
    "alibi": {"alibi_slopes": ALIBI},
    "wide heads": {"heads": HeadLayout(num_heads=3, num_kv_heads=1, head_dim=20)},
}


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks are small, so that there are several."""
    for name, size in (("BLOCK_M", 16), ("BLOCK_N", 32), ("CHUNK", 16)):
        monkeypatch.setattr(linear, name, size)
    monkeypatch.setattr(linear, "TILES", {"bf16": (16, 3), "fp32": (16, 2)})
    monkeypatch.setattr(linear, "UNEVEN_K", 8)
    for name, size in (("BLOCK_M", 16), ("CHUNK", 16)):
        monkeypatch.setattr(attention, name, size)
    monkeypatch.setattr(attention, "tile_of", lambda *_, **_more: 8)
    monkeypatch.setattr(attention, "value_of", lambda *_, **__: 16)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of a program."""
    return dict(CASES[request.param])


def built(case: dict[str, Any], device: EmulatedDevice) -> CompiledModel:
    dtype, kv_dtype = case.pop("dtype", "bfloat16"), case.pop("kv_dtype", None)
    return compiled(program(**case), device, kv_dtype, dtype=dtype)


@pytest.mark.sweep(4)
def test_kernels_are_like_their_twins(case: dict[str, Any]) -> None:
    by_kernels, by_twins = (built(dict(case), d) for d in (InterpretedDevice(), EmulatedDevice()))
    parts = [(0, 0, 9), (2, 0, 17)], [(0, 9, 24), (1, 0, 3)]
    for step in parts:
        found, wanted = logits(by_kernels, *step), logits(by_twins, *step)
        limit = 1e-4 if case.get("dtype") == "float32" else 2e-2
        assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("cache", ["i8", "f8"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_k_and_v_are_rounded_as_by_their_twin(dtype: str, cache: str) -> None:
    """Rows of all sizes, some with numbers that are not finite or that are between two codes."""
    heads, width, tokens = 2, 32, 24
    rng = np.random.default_rng(0)
    shape = (2, tokens, heads, width)
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)
    numbers[:, :6] = np.round(numbers[:, :6], 1)
    numbers[0, 6:9, 0, 3], numbers[1, 8, 1, 4] = (np.nan, np.inf, 1e-33), -np.inf
    numbers[:, 9] = 0
    numbers[:, 10:12] *= 1e-35
    numbers[:, 12:14, :, 0] = 448
    numbers[:, 12:14, :, 1:] = rng.choice([-17.0, 19.0, 0.0009765625, 1.03125, -0.0], (2, 2, 2, 31))
    flat = numbers.astype(np.float32).reshape(2, -1)
    k, v = flat if dtype == "fp32" else narrow_to_bfloat16(flat)
    found = []
    for device in (InterpretedDevice(), EmulatedDevice()):
        caches = np.zeros((2, tokens * heads * width), np.int8)
        scales = np.zeros((2, tokens * heads), np.float32)
        args: dict[str, Any] = {
            "k": k, "v": v, "slots": np.arange(tokens, dtype=np.int32)[::-1].copy(),
            "k_cache": caches[0], "v_cache": caches[1], "k_scales": scales[0],
            "v_scales": scales[1], "page": 8, "head_dim": width, "value_dim": width,
            "stride_k": heads * width, "stride_v": heads * width, "scales_block": 8 * heads,
            "scales_slot": heads, "stride_block_k": 8 * heads * width,
            "stride_block_v": 8 * heads * width, "stride_slot_k": heads * width,
            "stride_slot_v": heads * width,
        }  # fmt: skip
        args = {n: np.int32(a) if isinstance(a, int) else a for n, a in args.items()}
        device._call(attention.write_kernel(dtype, cache, width), (tokens, heads), args)
        found.append((caches.tobytes(), np.nan_to_num(scales, nan=-1).tobytes()))
    assert found[0] == found[1]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("device", [InterpretedDevice, EmulatedDevice])
def test_a_row_has_the_same_bits_in_any_step(
    case: dict[str, Any], device: type[EmulatedDevice]
) -> None:
    """Alone, in a batch, in chunks, and with work that is divided among programs or not."""
    model = built(case, device())
    whole = alone(model)
    together = logits(model, *((r, 0, n) for r, n in enumerate(LENGTHS)))
    assert together.tobytes() == np.concatenate(whole).tobytes()
    assert logits(model, (0, 0, 15)).tobytes() == whole[0][:15].tobytes()
    rest = logits(model, (1, 2, 3), (0, 15, 23), (2, 16, 17))
    assert (
        rest.tobytes() == np.concatenate([whole[1][2:], whole[0][15:23], whole[2][16:]]).tobytes()
    )
    assert logits(model, (0, 23, 24)).tobytes() == whole[0][23:].tobytes()


def test_work_is_divided_in_small_steps_alone() -> None:
    """So that the test above compares both ways."""
    device = EmulatedDevice()
    model = compiled(program(), device)
    used = []
    for parts in (((0, 0, 24), (1, 0, 3), (2, 0, 17)), ((0, 23, 24),)):
        device.launches = []
        logits(model, *parts)
        used.append({str(kernel) for kernel in device.launches})
    large, small = used
    assert any("attend" in name and "SPLIT=1" in name for name in small)
    assert any("attention.merge" in name for name in small)
    assert any("attend" in name and "SPLIT=0" in name for name in large)
    assert any("linear.reduce" in name for name in small)


POINTWISE: dict[str, Change] = {
    "layer norm": lambda b, x: b.layer_norm(x, "ln", 1e-5),
    **{
        f"act {name}": (lambda b, x, name=name: b.act(x, name))
        for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "gelu_quick", "tanh")
    },
    **{
        f"glu {name}": (lambda b, x, name=name: b.glu(x, b.scale(x, 0.5), name))
        for name in ("silu", "gelu_tanh", "swiglu_oai")
    },
    "scale": lambda b, x: b.scale(x, 1.5),
    "learned": lambda b, x: b.learned_positions(x, Tensor("pos.weight", (80, 32)), offset=2),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", POINTWISE)
def test_an_op_is_like_its_twin(name: str, dtype: str) -> None:
    of = program(POINTWISE[name])
    found, wanted = (
        logits(compiled(of, device, dtype=dtype), (1, 0, 3), (2, 0, 5))
        for device in (InterpretedDevice(), EmulatedDevice())
    )
    limit = 1e-4 if dtype == "float32" else 2e-2
    assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()


@pytest.mark.parametrize("device", [InterpretedDevice, EmulatedDevice])
def test_what_is_not_finite_stays_in_its_row(device: type[EmulatedDevice]) -> None:
    of = program()
    kv = KVCacheSpec(24, 16, "bfloat16", keep_all(of))
    store = RandomStore(of, {"embed.weight": (int(TOKENS[0][6]), 2)})
    model = CudaBackend(device()).compile(of, store, kv, OPTIONS)
    found = logits(model, (0, 0, 12))
    is_bad = ~np.isfinite(found).all(axis=1)
    first = TOKENS[0][:12].tolist().index(TOKENS[0][6])
    assert is_bad.tolist() == [False] * first + [True] * (12 - first)
