"""The rounding that the quantised formats are defined by."""

from __future__ import annotations

import numpy as np
import pytest

from quire.backends.reference.quantised import round_activations, round_weights
from quire.program.values import WeightFormat

EIGHT_BITS: list[WeightFormat] = ["int8", "int8_w8a8"]
FOUR_BITS: list[WeightFormat] = ["int4", "int4_w4a8"]
QUANTISED = EIGHT_BITS + FOUR_BITS


def test_weights_by_hand() -> None:
    """A scale of 1 for the first row, 0.5 for the second; halves go to the even neighbour."""
    weight = np.array([[127, 0.5, 1.5, -2.5], [-63.5, 0.24, 0.25, 0.26]], np.float32)
    wanted = [[127, 0, 2, -2], [-63.5, 0, 0, 0.5]]
    for name in EIGHT_BITS:
        np.testing.assert_array_equal(round_weights(weight, name), np.array(wanted, np.float32))
    np.testing.assert_array_equal(round_weights(weight, "dense"), weight)


@pytest.mark.parametrize("name", FOUR_BITS)
class TestFourBits:
    """The grid of each group, and how well it was chosen."""

    def test_by_hand(self, name: WeightFormat) -> None:
        """A scale of 1. A group of multiples of 16, but for its ends; two of steps of 1, all exact,
        on both sides of zero and on one. Most of the last does not exist."""
        weight = np.zeros((1, 68), np.float32)
        weight[0, :14] = [119, -119, *np.arange(-96, 96, 16)]
        weight[0, 32:48] = np.arange(-7, 9)
        weight[0, 64:] = [15, 1, 2, 3]
        wanted = weight.copy()
        wanted[0, :2] = [112, -112]
        np.testing.assert_array_equal(round_weights(weight, name), wanted)

    def test_sixteen_integers_a_group_within_8_bits(self, name: WeightFormat) -> None:
        weight = np.random.default_rng(1).standard_t(3, (40, 32 * 9)).astype(np.float32)
        integers = round_weights(weight, name) / (np.abs(weight).max(axis=1, keepdims=True) / 119)
        assert np.abs(integers - np.rint(integers)).max() < 1e-3
        integers = np.rint(integers).astype(int)
        assert 112 <= np.abs(integers).max() <= 127
        for group in integers.reshape(-1, 32):
            step = max(int(np.gcd.reduce(group - group.min())), 1)
            assert np.ptp(group) <= 15 * step
            assert step <= 16

    def test_few_other_steps_and_offsets_are_better(self, name: WeightFormat) -> None:
        """Against all 2,048 of them: at most 5 % more error over many groups. Grids that have 0
        among their numbers have at least a ninth more."""
        weight = np.random.default_rng(2).standard_normal((60, 32), np.float32)
        weight[:, 0] = 4  # the rows' scales
        scales = np.abs(weight).max(axis=1, keepdims=True) / 119
        steps, offsets = np.meshgrid(np.arange(1, 17), np.arange(128), indexing="ij")
        steps, offsets = steps.reshape(-1, 1, 1), offsets.reshape(-1, 1, 1)
        u = np.clip(np.rint((weight / scales + offsets) / steps), 0, 15)
        every = np.square((u * steps - offsets) * scales - weight).sum(axis=2)
        found = np.square(round_weights(weight, name) - weight).sum(axis=1)
        assert (found >= every.min(axis=0) * (1 - 1e-5) - 1e-6).all()
        assert found.sum() < 1.05 * every.min(axis=0).sum()
        on_zero = every[(offsets % steps == 0).reshape(-1)].min(axis=0)
        assert found.sum() < 0.9 * on_zero.sum()

    def test_rows_do_not_know_each_other_and_bad_ones_stay_alone(self, name: WeightFormat) -> None:
        weight = np.random.default_rng(3).standard_normal((5, 70), np.float32)
        clean = round_weights(weight, name)
        np.testing.assert_array_equal(round_weights(weight[2:3], name), clean[2:3])
        weight[1, 3], weight[4, 69] = np.nan, np.inf
        rounded = round_weights(weight, name)
        assert np.isnan(rounded[[1, 4]]).all()
        np.testing.assert_array_equal(rounded[[0, 2, 3]], clean[[0, 2, 3]])


@pytest.mark.parametrize(
    ("weight_format", "steps"),
    [("int8", 127 * 256), ("int8_w8a8", 127), ("int4", 127 * 256), ("int4_w4a8", 127)],
)
def test_activations_are_within_half_a_step(weight_format: WeightFormat, steps: int) -> None:
    x = np.random.default_rng(0).standard_normal((50, 333), np.float32)
    x[:, 7] = 90
    rounded = round_activations(x, weight_format)
    largest = np.sort(np.abs(x), axis=1)[:, -2 if steps == 127 else -1, None]
    half_step = largest / steps / 2
    error = np.abs(rounded - x)
    assert (error <= half_step * 1.01).all()
    assert error.max() > half_step.min() / 2
    np.testing.assert_array_equal(round_activations(x[3:4], weight_format), rounded[3:4])


def test_up_to_four_numbers_of_a_row_may_have_16_bits() -> None:
    """Each step is 1: the largest number but for outliers is 127, or the largest one 127 * 256."""
    rows = np.zeros((5, 8), np.float32)
    rows[0] = [127, 1000.4, -3, 0.6, -500, 191, -200.4, 1]
    rows[1, :7] = [-127, -126.6, 85, 5.4, 0, 84.7, 100.4]
    rows[2, :7] = [127 * 256, 127, -126.6, 64.4, 999.6, 1000.4, -900]
    rows[3, :4] = [-127 * 256, 31.4, 0.4, 0]
    rows[4, 5] = -127 * 256
    for name in ("int8_w8a8", "int4_w4a8"):
        np.testing.assert_array_equal(round_activations(rows, name), np.rint(rows))
        np.testing.assert_array_equal(round_activations(rows[:, :1], name), np.rint(rows[:, :1]))


def test_zeros_stay_and_what_is_not_finite_spreads_over_its_row_alone() -> None:
    x = np.ones((4, 5), np.float32)
    x[0], x[1, 2], x[2, 2] = 0, np.nan, np.inf
    for name in QUANTISED:
        rounded = round_activations(x, name)
        np.testing.assert_array_equal(rounded[[0, 3]], x[[0, 3]])
        assert np.isnan(rounded[1:3]).all()
        np.testing.assert_array_equal(round_weights(np.zeros((2, 3), np.float32), name), 0)
