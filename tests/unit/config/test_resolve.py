"""Choices and facts become concrete values, or an error that names what would work."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quire.config import resolve
from quire.config.checkpoint.model_files import GenerationConfig, read_generation_config
from quire.config.engine_args import EngineArgs
from quire.config.field_types import check_fields
from quire.errors import ConfigError

BOTH = ("float32", "bfloat16")


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32", "torch.bfloat16"])
def test_auto_dtype_is_bfloat16(stored: str) -> None:
    assert resolve.resolve_dtype(EngineArgs(), {"dtype": stored}, BOTH) == "bfloat16"
    assert resolve.resolve_dtype(EngineArgs(), {"torch_dtype": stored}, ("float32",)) == "float32"


def test_a_dtype_by_name(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve.resolve_dtype(EngineArgs(dtype="float"), {}, BOTH) == "float32"
    for dtype in ("half", "float16"):
        caplog.clear()
        args = EngineArgs(dtype=dtype)  # type: ignore[arg-type]
        assert resolve.resolve_dtype(args, {}, BOTH) == "bfloat16"
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"dtype={dtype}: float16 is computed in bfloat16" in caplog.text
        with pytest.raises(ConfigError, match="use one of auto, float32"):
            resolve.resolve_dtype(args, {}, ["float32"])
    with pytest.raises(ConfigError, match="dtype='int3' is not known"):
        resolve.resolve_dtype(EngineArgs(dtype="int3"), {}, BOTH)  # type: ignore[arg-type]


def test_context_length() -> None:
    assert resolve.resolve_max_model_len(EngineArgs(), 4096, 4096) == 4096
    assert resolve.resolve_max_model_len(EngineArgs(max_model_len=128), 4096, 4096) == 128
    assert resolve.resolve_max_model_len(EngineArgs(max_model_len=-1), 4096, 4096) is None
    with pytest.raises(ConfigError, match="use at most 4096"):
        resolve.resolve_max_model_len(EngineArgs(max_model_len=5000), 4096, 4096)
    with pytest.raises(ConfigError, match="positive or -1"):
        resolve.resolve_max_model_len(EngineArgs(max_model_len=0), 4096, 4096)


def test_step_bounds_by_usage() -> None:
    llm = resolve.resolve_scheduler(EngineArgs(), "llm", 1024)
    assert (llm.max_num_batched_tokens, llm.max_num_seqs) == (4096, 256)
    assert llm.max_num_queued_reqs is None
    server = resolve.resolve_scheduler(EngineArgs(), "server", 1024)
    assert (server.max_num_batched_tokens, server.max_num_seqs) == (2048, 128)
    assert server.max_num_queued_reqs
    assert (llm.max_decode_slowdown, server.max_decode_slowdown) == (None, 1.75)
    unpaced = resolve.resolve_scheduler(EngineArgs(max_decode_slowdown=0), "server", 1024)
    assert unpaced.max_decode_slowdown is None


def test_a_small_budget_bounds_the_rows() -> None:
    found = resolve.resolve_scheduler(EngineArgs(max_num_batched_tokens=10), "llm", 1024)
    assert found.max_num_seqs == 10


def test_without_chunked_prefill_the_budget_holds_the_longest_prompt() -> None:
    args = EngineArgs(enable_chunked_prefill=False)
    assert resolve.resolve_scheduler(args, "llm", 100_000).max_num_batched_tokens == 100_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, r"max_num_batched_tokens \(4\)"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a positive whole number"),
        ({"max_num_batched_tokens": "many"}, "positive whole number, got 'many'"),
        ({"max_decode_slowdown": 0.5}, "max_decode_slowdown must be larger than 1"),
        ({"max_decode_slowdown": math.nan}, "max_decode_slowdown must be larger than 1"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512},
            "use at least 1024",
        ),
    ],
)
def test_impossible_step_bounds(given: dict[str, Any], message: str) -> None:
    args = EngineArgs(**given)
    with pytest.raises(ConfigError, match=message):
        resolve.resolve_scheduler(args, "llm", 1024)


@pytest.mark.parametrize(
    "name",
    [
        "stream_interval", "max_num_queued_reqs", "max_num_queued_tokens", "kv_cache_memory_bytes",
        "num_gpu_blocks_override", "nnodes", "tensor_parallel_size", "pipeline_parallel_size",
        "data_parallel_size",
    ],
)  # fmt: skip
def test_a_declared_check_names_the_argument(name: str) -> None:
    check_fields(EngineArgs(**{name: 1}))
    for value in (0, -1):
        message = f"^{name} must be a positive whole number, got {value}; try "
        with pytest.raises(ConfigError, match=message):
            check_fields(EngineArgs(**{name: value}))
    with pytest.raises(ConfigError, match="scheduling_policy='lifo' is not known; use one of fcfs"):
        check_fields(EngineArgs(scheduling_policy="lifo"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^long_prefill_token_threshold must be"):
        check_fields(EngineArgs(long_prefill_token_threshold=-1))


def test_a_record_takes_arguments_of_the_same_names() -> None:
    args = EngineArgs(stream_interval=7, long_prefill_token_threshold=9, master_port=1234)
    found = resolve.resolve_scheduler(args, "llm", 1024)
    assert (found.stream_interval, found.long_prefill_token_threshold) == (7, 9)
    whole = resolve.resolve_scheduler(args, "llm", 1024, needs_whole=True)
    assert (whole.stream_interval, whole.long_prefill_token_threshold) == (7, 0)
    assert resolve.resolve_parallel(args, "llm").master_port == 1234


@pytest.mark.parametrize("share", [0, -1, 1.5, math.nan, "half"])
def test_impossible_shares_of_memory(share: Any) -> None:
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        resolve.resolve_kv_choice(EngineArgs(gpu_memory_utilization=share))


def write_generation_config(path: Path, **values: Any) -> None:
    (path / "generation_config.json").write_text(json.dumps(values))


def sampling_defaults(args: EngineArgs, model_dir: Path) -> dict[str, Any]:
    held = read_generation_config(model_dir, {})
    return resolve.resolve_sampling_defaults(args, held)


def test_a_seed_and_stops_may_be_defaults_of_the_user_alone() -> None:
    given = {"seed": 7, "stop": ["x", "y"], "top_k": 3}
    args = EngineArgs(override_generation_config=given)
    own = GenerationConfig({"seed": 1, "stop": ["model"]}, "file")
    assert resolve.resolve_sampling_defaults(args, own) == given
    with pytest.raises(ConfigError, match="stop"):
        resolve.resolve_sampling_defaults(EngineArgs(override_generation_config={"stop": 3}), own)


def test_sampling_defaults_come_from_the_model(tmp_path: Path) -> None:
    write_generation_config(tmp_path, temperature=0.6, top_k=20, max_new_tokens=9, do_sample=True)
    found = sampling_defaults(EngineArgs(), tmp_path)
    assert found == {"temperature": 0.6, "top_k": 20, "max_tokens": 9}
    args = EngineArgs(override_generation_config={"top_p": 0.5, "top_k": 3})
    merged = {"temperature": 0.6, "top_k": 3, "max_tokens": 9, "top_p": 0.5}
    assert sampling_defaults(args, tmp_path) == merged


def test_only_a_user_limits_all_replies(tmp_path: Path) -> None:
    write_generation_config(tmp_path, max_new_tokens=9)
    for options, most in (
        ({}, None),
        ({"generation_config": "vllm"}, None),
        ({"generation_config": str(tmp_path)}, 9),
        ({"override_generation_config": {"max_new_tokens": 5}}, 5),
        ({"generation_config": str(tmp_path), "override_generation_config": {"top_k": 1}}, 9),
    ):
        args = EngineArgs(**options)
        defaults = sampling_defaults(args, tmp_path)
        assert resolve.resolve_max_output_tokens(args, defaults) == most


def test_penalties_that_a_model_recommends_apply(tmp_path: Path) -> None:
    write_generation_config(tmp_path, repetition_penalty=1.1, temperature=0.5)
    recommended = {"repetition_penalty": 1.1, "temperature": 0.5}
    assert sampling_defaults(EngineArgs(), tmp_path) == recommended
    args = EngineArgs(override_generation_config={"repetition_penalty": 1.2})
    assert sampling_defaults(args, tmp_path) == {**recommended, "repetition_penalty": 1.2}
    args = EngineArgs(override_generation_config={"repetition_penalty": 0})
    with pytest.raises(ConfigError, match="repetition_penalty must be greater than zero"):
        sampling_defaults(args, tmp_path)


def test_impossible_recommendations_are_an_error_at_start(tmp_path: Path) -> None:
    write_generation_config(tmp_path, temperature=9.0)
    with pytest.raises(ConfigError, match=r"temperature must be in \[0, 2\].*'vllm'"):
        sampling_defaults(EngineArgs(), tmp_path)


def test_served_names() -> None:
    assert resolve.served_names(EngineArgs(), "m") == ("m",)
    assert resolve.served_names(EngineArgs(served_model_name=["a", "b"]), "m") == ("a", "b")


@pytest.mark.parametrize(
    "given",
    [
        {"max_model_len": "4096"},
        {"max_model_len": 4096.0},
        {"seed": None},
        {"max_num_seqs": True},
        {"disable_log_stats": "no"},
        {"gpu_memory_utilization": "half"},
        {"hf_overrides": "x"},
        {"served_model_name": 5},
        {"model": 5},
    ],
)
def test_values_of_a_wrong_type_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{list(given)[-1]} must be"):
        check_fields(EngineArgs(**given))


def test_values_of_the_right_type_pass() -> None:
    check_fields(
        EngineArgs(
            "m", served_model_name=["a"], hf_token=True, gpu_memory_utilization=1, max_model_len=5,
            hf_overrides={"a": 1},
        )
    )  # fmt: skip
