"""What the quantised formats compute: the rounding of weights and of activations to integers.

Symmetric, to nearest with ties to even, one scale for each row: of a weight [N, K] over the K
numbers of an output channel, of an activation [T, K] over those of a token. Rounded numbers are
given as the float32s that they stand for, integer times scale; a product of two such matrices is
then the format's result, up to the rounding of its sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.program.values import WeightFormat

Floats = NDArray[np.float32]

WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("dense", "int8", "int8_w8a8")

_WEIGHT_LIMIT = 127
_ACTIVATION_LIMITS: dict[WeightFormat, int | None] = {
    "dense": None,
    "int8": 127 * 256,  # two planes of 8 bits
    "int8_w8a8": 127,
}


def check_format(weight_format: WeightFormat) -> None:
    """Raises BackendError for a format that is not defined here."""
    if weight_format not in WEIGHT_FORMATS:
        raise BackendError(f"the reference backend has no weight format {weight_format}")


def round_weights(weight: Floats, weight_format: WeightFormat) -> Floats:
    """[N, K] as the format holds it."""
    if weight_format == "dense":
        return weight
    scales = np.abs(weight).max(axis=1, keepdims=True) / np.float32(_WEIGHT_LIMIT)
    inverse = _inverse(np.float32(1), scales)
    rounded: Floats = np.clip(np.rint(weight * inverse), -_WEIGHT_LIMIT, _WEIGHT_LIMIT) * scales
    return rounded


def round_activations(x: Floats, weight_format: WeightFormat) -> Floats:
    """[T, K] as the format multiplies it. A NaN or an infinity makes its whole row NaN."""
    limit = _ACTIVATION_LIMITS[weight_format]
    if limit is None:
        return x
    largest = np.abs(x).max(axis=1, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, np.float32(np.nan))
    inverse = _inverse(np.float32(limit), largest)
    rounded: Floats = np.rint(x * inverse) * (largest / np.float32(limit))
    return rounded


def _inverse(numerator: np.float32, largest: Floats) -> Floats:
    """numerator / largest; 0 for rows of zeros, which stay zeros."""
    result = np.zeros_like(largest)
    np.divide(numerator, largest, out=result, where=largest != 0)
    return result
