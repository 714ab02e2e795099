"""Single ops of the reference against formulas written out plainly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kv_layouts import group_of
from numpy.typing import NDArray
from small_model import one_request

from quire.backends.base import KVCacheSpec
from quire.backends.kv_formats import narrow_to_bfloat16, widen_bfloat16
from quire.backends.paged_kv_cache import PagedKVCache
from quire.backends.reference.linear import RowIndependentMatrix
from quire.backends.reference.ops import Frame, Weights, run
from quire.config.kv_layout import KVLayout
from quire.errors import BackendError
from quire.program import (
    Act,
    Attention,
    Embed,
    HeadNorm,
    LayerNorm,
    Logits,
    Op,
    Param,
    RmsNorm,
    Rope,
    Scale,
    Tensor,
    Value,
)

RANDOM = np.random.default_rng(3)
TOKENS = [5, 2, 7, 0, 1]
X, OUT = Value("x", 6), Value("out", 6)
Floats = NDArray[np.float32]
SPEC = KVCacheSpec(4, 2, "float32", KVLayout((group_of((0,), 1, 2),), 1))


def slot(name: str, *shape: int) -> Param:
    return Param(name, shape, (Tensor(name, shape),))


def compute(op: Op, x: Floats, **arrays: Floats) -> Floats:
    matrices = {name: RowIndependentMatrix(a) for name, a in arrays.items() if a.ndim == 2}
    frame = Frame(one_request(TOKENS, [3, 0, 2]), Weights(arrays, matrices, {}), PagedKVCache(SPEC))
    frame.values[X] = x
    run(op, frame)
    return frame.values[op.outputs()[0]]


def numbers(*shape: int) -> Floats:
    return RANDOM.standard_normal(shape, np.float32)


def test_rms_norm_with_offset() -> None:
    x, weight = numbers(5, 6), numbers(6)
    found = compute(RmsNorm(X, OUT, slot("w", 6), 0.01, weight_offset=1.0), x, w=weight)
    for row, result in zip(x, found, strict=True):
        scale = 1 / math.sqrt(sum(float(v) ** 2 for v in row) / 6 + 0.01)
        np.testing.assert_allclose(result, row * scale * (weight + 1), rtol=1e-5)


def test_layer_norm_divides_by_d() -> None:
    x = numbers(5, 6)
    found = compute(LayerNorm(X, OUT, None, None, 1e-5), x)
    for row, result in zip(x, found, strict=True):
        variance = sum((float(v) - float(row.mean())) ** 2 for v in row) / 6
        np.testing.assert_allclose(
            result, (row - row.mean()) / math.sqrt(variance + 1e-5), rtol=1e-4
        )


def test_head_norm_is_an_rms_norm_per_head() -> None:
    x, weight = numbers(5, 6), numbers(3)
    found = compute(HeadNorm(X, OUT, slot("w", 3), 1e-6, 2, 3), x, w=weight)
    half = compute(RmsNorm(X, OUT, slot("w", 3), 1e-6), x[:, 3:], w=weight)
    np.testing.assert_allclose(found[:, 3:], half, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_as_complex_numbers(interleaved: bool) -> None:
    x = numbers(5, 6)
    op = Rope(X, OUT, 1, 6, (0.5, 0.03), scale=1.25, interleaved=interleaved)
    found = compute(op, x)
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    for position in range(5):
        for (a, b), freq in zip(pairs, op.inv_freq, strict=True):
            turn = 1.25 * np.exp(1j * position * freq)
            turned = complex(x[position, a], x[position, b]) * turn
            assert found[position, a] == pytest.approx(turned.real, abs=1e-6)
            assert found[position, b] == pytest.approx(turned.imag, abs=1e-6)
    np.testing.assert_array_equal(found[:, 4:], x[:, 4:])


def plain_attention(x: Floats, op: Attention) -> Floats:
    """One kv head, three query heads of 2; the values are the keys."""
    out = np.zeros((5, 6))
    for p in range(5):
        for n in range(3):
            first = 0 if op.window is None else max(0, p - op.window + 1)
            scores = []
            for key in range(first, p + 1):
                score = float(x[p, 2 * n : 2 * n + 2] @ x[key, :2]) * op.scale
                if op.softcap is not None:
                    score = op.softcap * math.tanh(score / op.softcap)
                if op.alibi_slopes is not None:
                    score += op.alibi_slopes[n] * (key - p)
                scores.append(math.exp(score))
            for key, weight in zip(range(first, p + 1), scores, strict=True):
                out[p, 2 * n : 2 * n + 2] += weight / sum(scores) * x[key, :2]
    return out.astype(np.float32)


@pytest.mark.parametrize(
    "features", [{}, {"window": 2}, {"softcap": 0.7}, {"alibi_slopes": (0.5, 0.25, 1.0)}], ids=str
)
def test_attention(features: dict[str, Any]) -> None:
    x, narrow = numbers(5, 6), Value("k", 2)
    op = Attention(X, narrow, narrow, OUT, 0, 3, 1, 2, 0.9, **features)
    frame = Frame(one_request(TOKENS, [3, 0, 2]), Weights({}, {}, {}), PagedKVCache(SPEC))
    frame.values[X], frame.values[narrow] = x, x[:, :2]
    run(op, frame)
    np.testing.assert_allclose(frame.values[OUT], plain_attention(x, op), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("act", "at_one", "at_minus_two"),
    [
        ("relu", 1.0, 0.0),
        ("silu", 1 / (1 + math.exp(-1)), -2 / (1 + math.exp(2))),
        ("gelu", 0.5 * (1 + math.erf(1 / math.sqrt(2))), -(1 + math.erf(-math.sqrt(2)))),
        ("gelu_tanh", 0.8411919906, -0.0454023059),
    ],
)
def test_activations(act: Any, at_one: float, at_minus_two: float) -> None:
    x = np.array([[1.0, -2.0, 0.0, 100.0, -1000.0, 3e38]], np.float32)
    found = compute(Act(X, OUT, act), x)
    assert found[0, :3] == pytest.approx([at_one, at_minus_two, 0.0], rel=1e-6)
    assert found[0, 3:].tolist() == [100.0, 0.0, np.float32(3e38)]


def test_embed_scales_and_logits_cap() -> None:
    table = numbers(8, 6)
    rows = compute(Embed(OUT, slot("t", 8, 6), scale=2.0), numbers(5, 6), t=table)
    np.testing.assert_array_equal(rows, table[TOKENS] * 2)
    x, bias = numbers(5, 6), numbers(8)
    op = Logits(X, Value("l", 8), slot("t", 8, 6), slot("b", 8), scale=3.0, softcap=2.0)
    expected = 2 * np.tanh((x @ table.T * 3 + bias) / 2)
    np.testing.assert_allclose(compute(op, x, t=table, b=bias), expected, rtol=1e-5, atol=1e-6)


def test_scale() -> None:
    np.testing.assert_array_equal(compute(Scale(X, OUT, 0.5), np.ones((1, 6), np.float32)), 0.5)


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(BackendError, match="no op Op"):
        compute(Op(), numbers(1, 6))


@pytest.mark.parametrize("places_are_equal", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (33, 7), (64, 80), (257, 129)])
def test_a_product_gives_a_row_the_same_bits_anywhere(
    rows: int, width: int, places_are_equal: bool
) -> None:
    matrix = RowIndependentMatrix(numbers(rows, width))
    if not places_are_equal:
        matrix._places_are_equal = False
    x = numbers(21, width)
    whole = matrix.multiply(x)
    np.testing.assert_allclose(whole, x @ matrix.weight.T, rtol=1e-4, atol=1e-5)
    for index in range(21):
        assert matrix.multiply(x[index : index + 1])[0].tobytes() == whole[index].tobytes()
    shuffled = RANDOM.permutation(21)
    assert matrix.multiply(x[shuffled]).tobytes() == whole[shuffled].tobytes()


def test_bfloat16_rounds_to_the_nearest_even() -> None:
    x = np.array(
        [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, np.inf, 3.4e38], np.float32
    )
    found = widen_bfloat16(narrow_to_bfloat16(x))
    assert found.tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -2.5, np.inf, np.inf]
    assert np.isnan(widen_bfloat16(narrow_to_bfloat16(np.array([np.nan], np.float32))))[0]
