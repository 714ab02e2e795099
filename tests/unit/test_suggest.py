"""Suggestions: slips of the pen are mended, and names that mean something else are not offered."""

from __future__ import annotations

import pytest

from quire.config.engine_args import AsyncEngineArgs
from quire.config.vllm_names import unsupported
from quire.suggest import did_you_mean, nearest

KNOWN = [*AsyncEngineArgs.__dataclass_fields__, *unsupported()]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("max_model_length", "max_model_len"), ("max_modle_len", "max_model_len"),
        ("maxmodellen", "max_model_len"), ("max_num_seq", "max_num_seqs"),
        ("tensor_paralel_size", "tensor_parallel_size"), ("quantisation", "quantization"),
        ("gpu_memory_utilisation", "gpu_memory_utilization"), ("sed", "seed"), ("dtpye", "dtype"),
        ("enable_prefix_cache", "enable_prefix_caching"), ("max-model-len", "max_model_len"),
    ],
)  # fmt: skip
def test_a_slip_is_mended(typed: str, meant: str) -> None:
    assert nearest(typed, KNOWN) == meant


@pytest.mark.parametrize(
    "typed",
    ["enable_foo", "max_tokens", "temperature", "disable_everything", "max_num_files", "x", "",
     "kv_cache_colour", "model_name_or_path", "kv_block_manager_kind"],
)  # fmt: skip
def test_what_means_something_else_is_not_offered(typed: str) -> None:
    assert did_you_mean(typed, KNOWN) == ""


def test_the_best_of_several_is_taken() -> None:
    assert did_you_mean("--prot", ["--port", "--part", "--no-port"]) == "; did you mean --port?"
