"""How the reference holds keys and values, against sums written out number by number."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest

from quire.backends.kv_formats import KV_FORMATS, Floats, RotatedKV

HEAD_DIM = 6


def rows(*heads: list[float]) -> Floats:
    """One token with these heads: [1, K, H]."""
    return np.array([heads], np.float32)


def held_and_back(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Integers [K, H], scales [K] and what they stand for [K, H] of one token."""
    held = KV_FORMATS["int8"][0].encode(values)
    back = KV_FORMATS["int8"][0].decode(held, HEAD_DIM)
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
    format_ = KV_FORMATS["int8"][0]
    back = format_.decode(format_.encode(values), HEAD_DIM).reshape(values.shape)
    step = np.abs(values).max(axis=2, keepdims=True) / 127
    assert (np.abs(back - values) <= 0.5001 * step).all()


@pytest.mark.parametrize("largest", [0.0, 1e-40, 1e-31])
def test_int8_rows_of_next_to_nothing_are_zero(largest: float) -> None:
    _, _, back = held_and_back(rows([largest] * HEAD_DIM))
    assert (back == 0).all()


@pytest.mark.parametrize(("bits", "middle"), [(4, 120), (5, 124)])
def test_rotated_heads_by_hand(bits: int, middle: int) -> None:
    """A head of 6 is padded to 32 numbers; one number alone is spread over all, by signs."""
    format_ = RotatedKV(bits)
    held = format_.encode(rows([math.sqrt(32), 0, 0, 0, 0, 0], [0] * 6))
    assert (held[0].shape, held[1].shape) == ((1, 2 * 4 * bits), (1, 2))
    [first, _] = np.unpackbits(held[0]).reshape(2, 32, bits)
    assert first.tolist() == [[1] * (bits - 1) + [0]] * 32  # the largest code
    assert math.isclose(held[1][0, 0], 1 / 127.9, rel_tol=1e-6)
    back = format_.decode(held, HEAD_DIM).reshape(2, HEAD_DIM)
    np.testing.assert_allclose(back[0, 0], math.sqrt(32) * middle / 127.9, rtol=1e-6)
    np.testing.assert_allclose(back[0, 1:], 0, atol=1e-6)
    swapped = np.unpackbits(format_.encode(rows([0, math.sqrt(32), 0, 0, 0, 0]))[0])
    assert swapped.reshape(32, bits)[:, -1].tolist() == [0, 1] * 16  # the signs


@pytest.mark.parametrize("head_dim", [6, 32, 64, 80, 96, 128])
@pytest.mark.parametrize("bits", [4, 5])
def test_rotated_heads_are_within_half_a_step(head_dim: int, bits: int) -> None:
    values = np.random.default_rng(0).standard_normal((50, 3, head_dim)).astype(np.float32)
    values *= np.float32([[[1], [100], [1e-3]]])
    values[:, :, 3] *= 20  # an outlier, which a rotation spreads over the head
    held = RotatedKV(bits).encode(values)
    error = RotatedKV(bits).decode(held, head_dim).reshape(values.shape) - values
    padded = -(-head_dim // 32) * 32
    # A rotation keeps lengths: at most half a step of each number.
    length = np.sqrt(np.square(error.astype(np.float64)).sum(axis=2))
    half_step = (128 >> bits) * 1.002
    assert (length <= half_step * held[1] * np.sqrt(padded)).all()


def test_rotated_rows_of_next_to_nothing_stay_so() -> None:
    for format_ in KV_FORMATS["int4"]:
        held = format_.encode(rows([0.0] * HEAD_DIM, [1e-35] * HEAD_DIM))
        assert np.abs(format_.decode(held, HEAD_DIM)).max() <= 1e-33


def test_8_bit_floats_by_hand() -> None:
    """The largest number of a head becomes 448, and below 2^-6 there are steps of 2^-9."""
    format_ = KV_FORMATS["fp8"][0]
    held = format_.encode(rows([448, -17, 19, 0.001, 0.003, 0], [0, 7, -1.75, 0, 0, 0]))
    codes, scales = held
    assert codes.view(np.uint8).reshape(2, 6).tolist() == [
        [0x7E, 0xD8, 0x5A, 1, 2, 0], [0, 0x7E, 0xEE, 0, 0, 0]
    ]  # fmt: skip
    assert scales.tolist() == [[1, 7 / 448]]
    back = format_.decode(held, HEAD_DIM).reshape(2, 6)
    assert back[0].tolist() == [448, -16, 20, 2**-9, 2**-8, 0]  # ties to even
    assert back[1].tolist() == [0, 7, -1.75, 0, 0, 0]


def test_8_bit_floats_are_within_a_sixteenth() -> None:
    values = np.random.default_rng(0).standard_normal((50, 3, HEAD_DIM)).astype(np.float32)
    format_ = KV_FORMATS["fp8"][0]
    back = format_.decode(format_.encode(values), HEAD_DIM).reshape(values.shape)
    smallest = np.abs(values).max(axis=2, keepdims=True) / 448 * 2**-10
    assert (np.abs(back - values) <= np.maximum(np.abs(values) / 16, smallest) * 1.0001).all()


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_spoils_its_own_row_only(bad: float, name: str) -> None:
    held = KV_FORMATS[name][0].encode(rows([1.0, bad, 0, 0, 0, 0], [1.0, 2, 3, 4, 5, 6]))
    back = KV_FORMATS[name][0].decode(held, HEAD_DIM).reshape(2, HEAD_DIM)
    assert np.isnan(back[0]).all()
    assert np.isfinite(back[1]).all()


def test_a_token_is_held_alike_alone_and_among_others() -> None:
    values = np.random.default_rng(1).standard_normal((9, 2, HEAD_DIM)).astype(np.float32)
    for format_ in chain.from_iterable(KV_FORMATS.values()):
        together = format_.encode(values)
        for token in range(9):
            for part, alone in zip(
                together, format_.encode(values[token : token + 1]), strict=True
            ):
                assert part[token].tobytes() == alone[0].tobytes()
