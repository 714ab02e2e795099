"""Rope settings: the spellings mean the same, and the numbers are the formula's."""

from __future__ import annotations

from typing import Any

import pytest

from quire.models.config_reader import ConfigReader
from quire.models.rope import rotary
from quire.program import Rotary


def read(head_dim: int = 8, **config: Any) -> Rotary:
    return rotary(ConfigReader({"max_position_embeddings": 64, **config}), head_dim)


def test_default_frequencies() -> None:
    assert read(rope_theta=16.0).inv_freq == pytest.approx((1.0, 0.5, 0.25, 0.125))
    assert read(head_dim=4).inv_freq == pytest.approx((1.0, 0.01))


def test_three_spellings_of_the_same() -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8}
    old = read(rope_theta=500.0, rope_scaling={"type": "yarn", **yarn})
    newer = read(rope_theta=500.0, rope_scaling={"rope_type": "yarn", **yarn})
    newest = read(rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, **yarn})
    assert old == newer == newest
    assert old != read(rope_theta=500.0)
    assert old.scale == pytest.approx(1.1386, abs=1e-4)


def test_null_scaling_is_none() -> None:
    assert read(rope_scaling=None) == read(rope_scaling={}) == read()


def test_linear_divides_and_dynamic_widens_the_base() -> None:
    plain = read(rope_theta=16.0)
    linear = read(rope_theta=16.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.inv_freq == pytest.approx([freq / 2 for freq in plain.inv_freq])
    dynamic = read(rope_theta=16.0, rope_scaling={"type": "dynamic", "factor": 2.0})
    base = 16.0 * 3.0 ** (8 / 6)
    assert dynamic.inv_freq == pytest.approx([base ** (-i / 4) for i in range(4)])


def test_yarn_without_a_factor_takes_the_ratio_of_the_lengths() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 16}
    assert read(rope_scaling=scaling) == read(rope_scaling={**scaling, "factor": 4.0})


def test_the_original_length_may_stand_at_the_top() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    beside = read(rope_scaling=scaling, original_max_position_embeddings=16)
    assert beside == read(rope_scaling={**scaling, "original_max_position_embeddings": 16})
    assert beside != read(rope_scaling=scaling)
