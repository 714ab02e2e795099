"""The arithmetic of the quantised formats: rounding of weights and of activations to integers.

To nearest with ties to even, one scale for each row: of a weight [N, K] over the K numbers of an
output channel, of an activation [T, K] over those of a token. Rounded numbers are given as the
float32s that they stand for, integer times scale; a product of two such matrices is then the
format's result, up to the rounding of its sums.

Of 8-bit activations, up to four outliers of a row have 16 bits, as a few columns are often many
times larger than all others and would leave these few steps (Source: Dettmers et al. 2022,
"LLM.int8()", section 3.2, where such columns are multiplied in 16 bits).

The integers of 4-bit weights are u * step - offset: u from 0 to 15 for each weight, a step from 1
to 16 and an offset from 0 to 127 for each group of 32 along K. They stay within 8 bits. This is
progressive quantisation (Source: Lin et al., QServe, section 4.1) in smaller groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.program.values import (
    ACTIVATION_BLOCK,
    BITS,
    WEIGHT_FORMATS,
    GroupedFormat,
    WeightFormat,
    activation_bits,
)

Floats = NDArray[np.float32]

_WEIGHT_LIMIT = 127
_GROUP = 32
_GROUP_LIMIT = 119  # and at most half a step of 16 away from it: 127
_TOP = 15
_MOST_OFFSET = 127
_STEPS_TRIED = 2
_MIDDLES = (7.5, 7.1875, 7.8125)  # u of the middle of a group
_FINE = 8  # errors are counted in eighths of an integer, so that all of them are whole
_BYTES = 127  # limit of 8-bit activations
_WORDS = 127 * 256  # of 16-bit activations: two planes of 8 bits; and of outliers
_OUTLIERS = 4  # numbers of a row of 8-bit activations that may have 16 bits,
_TIMES = 1.5  # if they are as many times larger than the largest number that cannot


def check_format(weight_format: WeightFormat | GroupedFormat) -> None:
    """Raises BackendError for a format that is not defined here."""
    if not isinstance(weight_format, GroupedFormat) and weight_format not in WEIGHT_FORMATS:
        raise BackendError(f"the reference backend has no weight format {weight_format}")


def round_weights(weight: Floats, weight_format: WeightFormat | GroupedFormat) -> Floats:
    """[N, K] as the format holds it. A NaN or an infinity makes its whole row NaN.

    A grouped format holds what the checkpoint says.
    """
    if weight_format == "dense" or isinstance(weight_format, GroupedFormat):
        return weight
    if BITS[weight_format][0] == 4:
        return four_bit_rows(weight).numbers(weight.shape[1])
    integers, scales = whole_rows(weight)
    rounded: Floats = integers * scales
    return rounded


def whole_rows(weight: Floats) -> tuple[Floats, Floats]:
    """[N, K] as integers from -127 to 127, and the scales [N, 1]."""
    scales = _largest(weight) / np.float32(_WEIGHT_LIMIT)
    inverse = _inverse(np.float32(1), scales)
    return np.clip(np.rint(weight * inverse), -_WEIGHT_LIMIT, _WEIGHT_LIMIT), scales


@dataclass(frozen=True, slots=True)
class FourBitRows:
    """A weight [N, K] of integers code * step - offset times a scale for each row. All are whole
    numbers in float32 but the scales. A row whose scale is NaN has any codes."""

    codes: Floats
    """[N, K / 32, 32]; zeros where the last group is padded."""
    steps: Floats
    """[N, K / 32, 1], and the same for offsets."""
    offsets: Floats
    scales: Floats
    """[N, 1]."""

    def numbers(self, depth: int) -> Floats:
        """[N, depth] in float32."""
        integers = self.codes * self.steps - self.offsets
        rounded: Floats = integers.reshape(len(self.scales), -1)[:, :depth] * self.scales
        return rounded


def four_bit_rows(weight: Floats) -> FourBitRows:
    """[N, K] in 4 bits."""
    depth = weight.shape[1]
    scales = _largest(weight) / np.float32(_GROUP_LIMIT)
    fine = np.rint(weight * _inverse(np.float32(1), scales) * np.float32(_FINE))
    padded = np.pad(fine, ((0, 0), (0, -depth % _GROUP))).reshape(len(weight), -1, _GROUP)
    steps, offsets = _nearest_steps(padded)
    return FourBitRows(_codes(padded, steps, offsets), steps, offsets, scales)


def _nearest_steps(fine: Floats) -> tuple[Floats, Floats]:
    """The steps and offsets with which groups [N, K / 32, 32], in eighths, have a small squared
    error as code * step - offset.

    Tried are the step that just spans a group and the next smaller one, with the middle of the
    group in the middle of the codes and to both sides of it. Each offset is improved once: to
    the best one for the codes that were found with it. Of equal errors the first is taken.
    """
    low = np.minimum(fine.min(axis=2, keepdims=True), 0)
    high = np.maximum(fine.max(axis=2, keepdims=True), 0)
    spanning = np.ceil((high - low) / np.float32(_TOP * _FINE))
    middle = (low + high) * np.float32(0.5 / _FINE)
    steps, offsets = np.ones_like(low), np.zeros_like(low)
    least = np.full_like(low, np.inf)
    for less in range(_STEPS_TRIED):
        step = np.maximum(spanning - np.float32(less), 1)
        for at in _MIDDLES:
            offset = _whole_offset(step * np.float32(at) - middle)
            for _ in range(2):
                integers = _codes(fine, step, offset) * step - offset
                errors = integers * _FINE - fine
                squares = np.square(errors).sum(axis=2, keepdims=True)
                steps = np.where(squares < least, step, steps)
                offsets = np.where(squares < least, offset, offsets)
                least = np.minimum(squares, least)
                mean = errors.sum(axis=2, keepdims=True) * np.float32(1 / (_FINE * _GROUP))
                offset = _whole_offset(offset + mean)
    return steps, offsets


def _codes(fine: Floats, step: Floats, offset: Floats) -> Floats:
    inverse = np.float32(1) / (step * np.float32(_FINE))
    codes: Floats = np.clip(np.rint((fine + offset * _FINE) * inverse), 0, _TOP)
    return codes


def _whole_offset(offset: Floats) -> Floats:
    return np.clip(np.rint(offset), 0, _MOST_OFFSET)


def round_activations(x: Floats, weight_format: WeightFormat | GroupedFormat) -> Floats:
    """[T, K] as the format multiplies it. A NaN or an infinity makes its whole row NaN."""
    if isinstance(weight_format, GroupedFormat) and weight_format.is_float:
        return x
    if isinstance(weight_format, GroupedFormat) and weight_format.activation_blocks:
        return _rounded_blocks(x)
    if weight_format == "dense":
        return x
    is_grouped = isinstance(weight_format, GroupedFormat)
    limit, largest = _WORDS, _largest(x)
    if activation_bits(weight_format) == 8:
        limit, largest = _BYTES, largest if is_grouped else _largest_inlier(x)
    inverse = _inverse(np.float32(limit), largest)
    rounded: Floats = np.rint(x * inverse) * (largest / np.float32(limit))
    return rounded


def _largest_inlier(x: Floats) -> Floats:
    """The largest magnitude of each row without its outliers, but so large that these fit in
    `_WORDS`; NaN where one is not finite."""
    magnitudes = np.pad(np.sort(np.abs(x), axis=1)[:, ::-1], ((0, 0), (0, _OUTLIERS)))
    fifth = magnitudes[:, _OUTLIERS, None]
    are_outliers = magnitudes[:, :_OUTLIERS] > np.float32(_TIMES) * fifth
    inlier = np.take_along_axis(magnitudes, are_outliers.sum(axis=1, keepdims=True), axis=1)
    found: Floats = np.maximum(inlier, _largest(x) * np.float32(_BYTES / _WORDS))
    return found


def _rounded_blocks(x: Floats) -> Floats:
    """With a scale for each ACTIVATION_BLOCK numbers of a row; the last may be fewer."""
    depth = x.shape[1]
    padded = np.pad(x, ((0, 0), (0, -depth % ACTIVATION_BLOCK)))
    blocks = padded.reshape(-1, ACTIVATION_BLOCK)
    largest = _largest(blocks)
    rounded = np.rint(blocks * _inverse(np.float32(127), largest)) * (largest / np.float32(127))
    found: Floats = rounded.reshape(padded.shape)[:, :depth]
    found[~np.isfinite(x).all(axis=1)] = np.nan
    return found


def _largest(x: Floats) -> Floats:
    """The largest magnitude of each row, [rows, 1]; NaN where one is not finite."""
    largest: Floats = np.abs(x).max(axis=1, keepdims=True)
    largest[~np.isfinite(largest)] = np.nan
    return largest


def _inverse(numerator: np.float32, largest: Floats) -> Floats:
    """numerator / largest; 0 for rows of zeros, which stay zeros."""
    result = np.zeros_like(largest)
    np.divide(numerator, largest, out=result, where=largest != 0)
    return result
