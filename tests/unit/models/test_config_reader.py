"""Values of config.json that are no numbers of a float's range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quire.errors import CheckpointError
from quire.models.config_reader import ConfigReader

HUGE = 10**400
"""A whole number beyond all floats, which JSON can hold."""


@pytest.mark.parametrize(
    "value", [HUGE, -HUGE, math.inf, -math.inf, math.nan, True, "1", [1]], ids=lambda _: ""
)
def test_a_number_is_one_of_a_range(value: Any) -> None:
    reader = ConfigReader({"one": value, "two": [1.0, value]})
    with pytest.raises(CheckpointError, match=r"config.json: one .* a number from 0 to 10"):
        reader.number("one", 0, 10, example=1)
    with pytest.raises(CheckpointError, match=r"config.json: two .* 2 numbers from 0 to 10"):
        reader.numbers("two", 2, 0, 10, example=1)


@pytest.mark.parametrize("value", [HUGE, math.nan, True, "x", None], ids=lambda _: "")
def test_limits_are_numbers(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: one .* a list of two numbers"):
        ConfigReader({"one": [0, value]}).limits("one", (0.0, math.inf))
    assert ConfigReader({"one": [0, "Infinity"]}).limits("one", (0.0, 1.0)) == (0.0, math.inf)
