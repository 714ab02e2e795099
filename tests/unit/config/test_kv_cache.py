"""The KV cache's number format and block size under vLLM's names, and what is said of others."""

from __future__ import annotations

from typing import Any

import pytest

from quire.config.kv_cache import resolve_block_size, resolve_kv_cache_dtype
from quire.errors import ConfigError

OF_CPU = ("float32", "bfloat16", "int8", "int4")
ALL = (*OF_CPU, "fp8")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("auto", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32"),
        ("float", "float32"), ("int8", "int8"), ("int8_per_token_head", "int8"),
        ("int4", "int4"), ("int4_per_token_head", "int4"),
        ("fp8", "fp8"), ("fp8_e4m3", "fp8"), ("fp8_per_token_head", "fp8"),
    ],
)  # fmt: skip
def test_names_that_mean_a_format(name: str, found: str) -> None:
    assert resolve_kv_cache_dtype(name, "bfloat16", ALL) == found


def test_auto_is_the_dtype_of_the_model() -> None:
    assert resolve_kv_cache_dtype("auto", "float32", ALL) == "float32"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fp8", "8-bit floating-point"), ("fp8_e4m3", "8-bit floating-point"),
        ("fp8_e5m2", "8-bit floating-point"), ("float16", "float16 is not computed"),
        ("half", "float16 is not computed"), ("nvfp4", "4-bit floating-point"),
        ("turboquant_4bit", "int4 is rotated too"), ("int9", "unknown name"),
    ],
)  # fmt: skip
def test_other_names_are_refused_with_what_works(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' .*{reason}.*auto.*bfloat16.*int8 \(8 bits"):
        resolve_kv_cache_dtype(name, "bfloat16", OF_CPU)


def test_only_what_the_backend_has_is_offered() -> None:
    with pytest.raises(ConfigError, match="this backend does not") as caught:
        resolve_kv_cache_dtype("int4_per_token_head", "bfloat16", ("float32", "bfloat16"))
    assert "bfloat16 (16 bits" in str(caught.value)
    assert "8 bits" not in str(caught.value)


@pytest.mark.parametrize(("size", "multiple", "found"), [(None, 16, 16), (48, 16, 48), (5, 1, 5)])
def test_block_sizes(size: int | None, multiple: int, found: int) -> None:
    assert resolve_block_size(size, multiple) == found


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, "from 16 to 1024"), (-16, "try 16"), (2048, "from 16 to 1024"), (1.5, "try 16"),
        (True, "try 16"), (8, "multiple of 16, got 8; try 16"), (1, "try 16"), (100, "try 96"),
    ],
)  # fmt: skip
def test_impossible_block_sizes(size: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"block_size.*{says}"):
        resolve_block_size(size, 16)
