"""Which names of formats are taken, and what is said of the others."""

from __future__ import annotations

from typing import get_args

import pytest

from quire.config.quantization import MEANINGS, Quantization, resolve_quantization
from quire.errors import ConfigError

ALL = ("dense", "int8", "int8_w8a8", "int4", "int4_w4a8")


def test_what_works() -> None:
    assert resolve_quantization(None, ALL) is None
    assert [resolve_quantization(name, ALL) for name in MEANINGS] == list(get_args(Quantization))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("awq", "quantised already"),
        ("compressed-tensors", "quantised already"),
        ("fp8", "floating-point"),
        ("int8_per_channel_weight_only", "mixtures of experts only"),
        ("online", "named here"),
        ("int3", "unknown name"),
        ("dense", "unknown name"),
        ("", "unknown name"),
    ],
)
def test_what_does_not_is_refused_by_name_with_what_does(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_quantization(name, ALL)
    assert f"quantization={name!r}" in str(caught.value)
    for named, meaning in MEANINGS.items():
        assert f"{named} ({meaning})" in str(caught.value)


def test_a_backend_without_it() -> None:
    with pytest.raises(ConfigError, match="not on this backend; leave it out"):
        resolve_quantization("int8", ("dense",))
