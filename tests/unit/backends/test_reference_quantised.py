"""The rounding that the quantised formats are defined by."""

from __future__ import annotations

import numpy as np
import pytest

from quire.backends.reference.quantised import round_activations, round_weights
from quire.program.values import WeightFormat

QUANTISED: list[WeightFormat] = ["int8", "int8_w8a8"]


def test_weights_by_hand() -> None:
    """A scale of 1 for the first row, 0.5 for the second; halves go to the even neighbour."""
    weight = np.array([[127, 0.5, 1.5, -2.5], [-63.5, 0.24, 0.25, 0.26]], np.float32)
    wanted = [[127, 0, 2, -2], [-63.5, 0, 0, 0.5]]
    for name in QUANTISED:
        np.testing.assert_array_equal(round_weights(weight, name), np.array(wanted, np.float32))
    np.testing.assert_array_equal(round_weights(weight, "dense"), weight)


@pytest.mark.parametrize(("weight_format", "steps"), [("int8", 127 * 256), ("int8_w8a8", 127)])
def test_activations_are_within_half_a_step(weight_format: WeightFormat, steps: int) -> None:
    x = np.random.default_rng(0).standard_normal((50, 333), np.float32)
    x[:, 7] *= 30
    rounded = round_activations(x, weight_format)
    half_step = np.abs(x).max(axis=1, keepdims=True) / steps / 2
    error = np.abs(rounded - x)
    assert (error <= half_step * 1.01).all()
    assert error.max() > half_step.min() / 2
    np.testing.assert_array_equal(round_activations(x[3:4], weight_format), rounded[3:4])


def test_zeros_stay_and_what_is_not_finite_spreads_over_its_row_alone() -> None:
    x = np.ones((4, 5), np.float32)
    x[0], x[1, 2], x[2, 2] = 0, np.nan, np.inf
    for name in QUANTISED:
        rounded = round_activations(x, name)
        np.testing.assert_array_equal(rounded[[0, 3]], x[[0, 3]])
        assert np.isnan(rounded[1:3]).all()
        np.testing.assert_array_equal(round_weights(np.zeros((2, 3), np.float32), name), 0)
