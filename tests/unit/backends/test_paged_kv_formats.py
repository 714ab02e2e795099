"""How the reference holds keys and values, against sums written out number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quire.backends.kv_formats import KV_FORMATS, Floats

HEAD_DIM = 6


def rows(*heads: list[float]) -> Floats:
    """One token with these heads: [1, K, H]."""
    return np.array([heads], np.float32)


def held_and_back(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Integers [K, H], scales [K] and what they stand for [K, H] of one token."""
    held = KV_FORMATS["int8"].encode(values)
    back = KV_FORMATS["int8"].decode(held, HEAD_DIM)
    shape = values.shape[1:]
    return held[0].reshape(shape), held[1].reshape(-1), back.reshape(shape)


def test_int8_by_hand() -> None:
    integers, scales, back = held_and_back(
        rows([127, -127, 0.5, 1.5, -2.4, 0], [0.0635, -0.127, 0, 0.001, 0.127, 0.0001])
    )
    assert integers[0].tolist() == [127, -127, 0, 2, -2, 0]  # ties to even
    assert scales[0] == 1
    assert math.isclose(scales[1], 0.001, rel_tol=1e-6)
    assert integers[1].tolist()[1:] == [-127, 0, 1, 127, 0]
    np.testing.assert_allclose(back[1], integers[1] * 0.001, rtol=1e-6)


def test_int8_is_within_half_a_step_of_each_head() -> None:
    values = np.random.default_rng(0).standard_normal((50, 3, HEAD_DIM)).astype(np.float32)
    values *= np.float32([[[1], [100], [1e-3]]])
    format_ = KV_FORMATS["int8"]
    back = format_.decode(format_.encode(values), HEAD_DIM).reshape(values.shape)
    step = np.abs(values).max(axis=2, keepdims=True) / 127
    assert (np.abs(back - values) <= 0.5001 * step).all()


@pytest.mark.parametrize("largest", [0.0, 1e-40, 1e-31])
def test_int8_rows_of_next_to_nothing_are_zero(largest: float) -> None:
    _, _, back = held_and_back(rows([largest] * HEAD_DIM))
    assert (back == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_spoils_its_own_row_only(bad: float) -> None:
    _, _, back = held_and_back(rows([1.0, bad, 0, 0, 0, 0], [1.0, 2, 3, 4, 5, 6]))
    assert np.isnan(back[0]).all()
    assert np.isfinite(back[1]).all()


def test_a_token_is_held_alike_alone_and_among_others() -> None:
    values = np.random.default_rng(1).standard_normal((9, 2, HEAD_DIM)).astype(np.float32)
    for format_ in KV_FORMATS.values():
        together = format_.encode(values)
        for token in range(9):
            for part, alone in zip(
                together, format_.encode(values[token : token + 1]), strict=True
            ):
                assert part[token].tobytes() == alone[0].tobytes()
