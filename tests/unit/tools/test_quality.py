"""The measure of quality is right, and the formats stay within what docs/quantisation.md says."""

from __future__ import annotations

import numpy as np
import pytest
from tools import quality

from quire.errors import BackendError

LIMITS = {
    "bfloat16": 1e-4, "bfloat16, KV int8": 5e-4, "int8": 1e-3, "int8, KV int8": 1e-3,
    "int8_w8a8": 2e-3, "int8_w8a8, KV int8": 2e-3,
    "int4": 1e-2, "int4_w4a8": 1e-2, "int4_w4a8, KV int8": 1e-2,
}  # fmt: skip


def test_the_divergence_by_hand() -> None:
    """A fair coin against one of 1 to 3: log(2) - log(3) / 2; equal ones, however shifted: 0."""
    truth = np.array([[0, 0], [3, 1]], np.float32)
    other = np.array([[0, np.log(3)], [5, 3]], np.float32)
    wanted = [np.log(2) - np.log(3) / 2, 0]
    np.testing.assert_allclose(quality.divergences(truth, other), wanted, atol=1e-7)


def test_outliers_are_planted() -> None:
    plain, planted = (quality.random_subject(factor, 1).store for factor in (1, 30))
    name = next(name for name in plain.names() if "input_layernorm" in name)
    ratio = planted.get(name).to_float32() / plain.get(name).to_float32()
    assert np.unique(ratio.round(3), return_counts=True)[1].tolist() == [
        512 - quality.OUTLIER_CHANNELS,
        quality.OUTLIER_CHANNELS,
    ]


def test_the_bundled_model_stays_itself() -> None:
    try:
        backend = quality.CpuBackend(2)
    except BackendError as error:
        pytest.skip(f"the native library is not built here: {error}")
    rows = [row.split("|") for row in quality.rows_of(backend, quality.demo_subject(2))]
    found = {cells[2].strip(): float(cells[3]) for cells in rows}
    assert list(found) == list(LIMITS)
    assert all(0 < found[name] < limit for name, limit in LIMITS.items())
    assert found["bfloat16"] < found["int8"] < found["int8_w8a8"] < found["int4"]
    assert found["bfloat16"] < found["bfloat16, KV int8"]
