"""All of vLLM 0.33's engine arguments are known: its defaults pass, by keyword and as options.

`tools/from_vllm/vllm_arguments.json` holds its names and defaults (of configuration objects: an
empty one), and the options of its `add_cli_args`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from tools.from_vllm.arguments import VLLM

from quire import AsyncEngineArgs, EngineArgs
from quire.config import names
from quire.config.command_line.engine_options import add_engine_options
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs as Record
from quire.config.names import check_assigned
from quire.config.vllm_names import unsupported
from quire.errors import ConfigError

DEFAULTS: dict[str, Any] = VLLM["arguments"]


def test_every_name_of_vllm_is_known_and_has_its_default() -> None:
    assert len(DEFAULTS) == 260
    fields = {field.name for field in dataclasses.fields(Record)}
    assert set(DEFAULTS) <= fields | set(unsupported())
    for name, default in DEFAULTS.items():
        if name in unsupported() and not isinstance(default, dict):
            assert unsupported()[name].default == default, name


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_of_vllm_passes(name: str) -> None:
    made = AsyncEngineArgs(**{name: DEFAULTS[name]})
    assert getattr(made, name) == DEFAULTS[name]


def test_all_defaults_at_once_pass() -> None:
    args = AsyncEngineArgs(**{**DEFAULTS, "model": "demo"})
    config = args.create_engine_config()
    assert config == AsyncEngineArgs("demo").create_engine_config()
    neutral = dict.fromkeys(("hf_overrides", "override_generation_config", "compilation_config"))
    assert EngineArgs("demo", **neutral).create_engine_config() == config


def test_every_option_of_vllm_is_known() -> None:
    parser = Parser("quire serve", "")
    add_engine_options(parser, record=Record)
    missing = set(VLLM["flags"]) - set(parser._option_string_actions)
    assert missing == {"--shutdown-timeout"} - set(parser._option_string_actions)


@pytest.mark.parametrize("name", VLLM["former"])
def test_an_argument_of_an_earlier_version_is_known(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(Record)}
    assert name in fields | set(unsupported())
    parser = Parser("quire serve", "")
    add_engine_options(parser, record=Record)
    assert f"--{name.replace('_', '-')}" in parser._option_string_actions


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("disable_log_requests", True, ""), ("device", "cpu", ""), ("enable_reasoning", True, ""),
        ("guided_decoding_backend", "outlines", ""), ("num_scheduler_steps", 8, ""),
        ("use_v2_block_manager", True, ""), ("rope_scaling", {}, ""),
        ("rope_scaling", {"type": "yarn"}, "hf_overrides has it"),
        ("speculative_model", "[ngram]", "speculative_config has it"),
        ("override_pooler_config", {"normalize": True}, "pooler_config has it"),
        ("worker_use_ray", True, "distributed_executor_backend='ray'"),
        ("guided_decoding_disable_any_whitespace", True, "structured_outputs_config has it"),
    ],
)  # fmt: skip
def test_an_argument_of_an_earlier_version_names_its_successor(
    name: str, value: object, advice: str
) -> None:
    if not advice:
        assert getattr(AsyncEngineArgs("demo", **{name: value}), name) == value
        return
    with pytest.raises(ConfigError, match=re.escape(advice)):
        AsyncEngineArgs("demo", **{name: value})


def test_each_argument_that_does_nothing_says_why() -> None:
    for entry in unsupported().values():
        assert len(entry.reason) > 15
        assert entry.accepts(entry.default), entry.name
        assert all(entry.accepts(value) for value in entry.also), entry.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_offload_gb", 0.0), ("cpu_offload_gb", 0), ("offload_params", set()),
        ("attention_config", {"backend": "FLEX_ATTENTION"}), ("attention_config", {}),
        ("attention_backend", "FLASH_ATTN"),
        ("runner", "generate"), ("data_parallel_backend", "mp"), ("optimization_level", 0),
        ("limit_mm_per_prompt", {"image": 0}), ("compilation_config", {"mode": 3}),
        ("compilation_config", 3), ("cudagraph_capture_sizes", [1, 2]),
        ("fully_sharded_loras", True),
        ("monokernel", True), ("sleep_mode_backend", "criu"), ("mamba_cache_mode", "align"),
        ("watchdog_config", {"timeout": 300}), ("watchdog_config", {"dump_dir": ""}),
        ("async_scheduling", True),
        ("eplb_config", {"window_size": 1000, "communicator": None, "log_balancedness": False}),
        ("aux_output_config", {"enable_return_routed_experts": False, "max_bytes": None}),
        ("ec_manager_config", {"encoder_cache_manager_cls": None, "manager_config": {}}),
        ("fault_tolerance_config", {"engine_recovery_timeout_sec": 120}),
        ("mamba_config", {"backend": "triton", "ssu_algorithm": None}),
    ],
)  # fmt: skip
def test_values_that_mean_the_same_pass(name: str, value: object) -> None:
    assert getattr(EngineArgs(**{name: value}), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_offload_gb", True), ("prefill_context_parallel_size", "2"),
        ("lora_target_modules", "q"),
        ("shutdown_timeout", 5), ("numa_bind", True),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        EngineArgs(**{name: value})  # type: ignore[arg-type]


def test_what_has_no_effect_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(names.logger, "info", lambda text, *values: told.append(text % values))
    args = EngineArgs(
        compilation_config={"mode": 3},  # type: ignore[call-arg]
        master_port=29501,
    )
    check_assigned(args)
    assert told == [
        "compilation_config={'mode': 3} has no effect here: kernels are compiled beforehand, and "
        "Quire chooses the steps that a GPU records"
    ]


def test_arguments_that_do_nothing_can_be_read_and_set() -> None:
    args = EngineArgs()
    assert args.prefill_context_parallel_size == 1
    assert args.ignore_patterns is not args.ignore_patterns
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = args.no_such_name
    args.prefill_context_parallel_size = 1  # type: ignore[attr-defined]
    check_assigned(args)
    args.prefill_context_parallel_size = 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="prefill_context_parallel_size=2"):
        check_assigned(args)
    args.prefill_context_parallel_size, args.max_model_length = 1, 5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        check_assigned(args)


def test_records_and_enums_stand_for_their_values() -> None:
    @dataclass
    class QuantizationConfig:
        name: str | None = None

    @dataclass
    class AttentionConfig:
        backend: str | None = None

    class Policy(str, Enum):
        FCFS = "fcfs"

    args = EngineArgs(
        attention_config=AttentionConfig("FLASH_ATTN"),  # type: ignore[call-arg]
        scheduling_policy=Policy.FCFS,  # type: ignore[arg-type]
    )
    assert args.scheduling_policy == "fcfs"
    with pytest.raises(ConfigError, match="quantization_config"):
        EngineArgs(quantization_config=QuantizationConfig("x"))  # type: ignore[call-arg]


def test_an_own_parser_gets_all_options_and_gives_the_arguments_back() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.set_defaults(model="m")
    namespace = parser.parse_args(
        ["--max-model-len", "auto", "-tp", "1", "--no-enable-prefix-caching", "--hf-token", "None"]
    )
    assert (namespace.model, namespace.tensor_parallel_size, namespace.seed) == ("m", 1, 0)
    args = EngineArgs.from_cli_args(namespace)
    assert (args.model, args.max_model_len, args.enable_prefix_caching) == ("m", -1, False)
    assert EngineArgs(**vars(namespace)) == args
    with pytest.raises(ConfigError, match="prefill_context_parallel_size=2"):
        EngineArgs.from_cli_args(parser.parse_args(["-pcp", "2"]))


def test_the_asynchronous_ones_have_their_own_option() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    namespace = parser.parse_args(["--enable-log-requests"])
    assert AsyncEngineArgs.from_cli_args(namespace).enable_log_requests is True
    own = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser(), async_args_only=True)
    assert vars(own.parse_args([])) == {"enable_log_requests": False}


def test_an_engine_configuration_comes_of_them() -> None:
    config = EngineArgs("demo").create_engine_config()
    assert config.scheduler.max_num_seqs == 256
    config = AsyncEngineArgs("demo").create_engine_config("OPENAI_API_SERVER")
    assert config.scheduler.max_num_seqs == 128
    for context in ("SOMEWHERE", 3):
        with pytest.raises(ConfigError, match="usage_context"):
            EngineArgs("demo").create_engine_config(context)
    with pytest.raises(ConfigError, match="headless"):
        EngineArgs("demo").create_engine_config(headless=True)
    assert isinstance(AsyncEngineArgs(), EngineArgs)


@pytest.mark.parametrize(
    "name",
    [
        "async_scheduling",
        "dcp_q_replicate",
        "disable_cascade_attn",
        "disable_hybrid_kv_cache_manager",
        "disable_nccl_for_dp_synchronization",
        "enable_batch_sharded_sampling",
        "mm_device_do_normalize",
    ],
)
def test_a_switch_without_a_default_can_be_set_both_ways(name: str) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    option = name.replace("_", "-")
    assert vars(parser.parse_args([f"--{option}"]))[name] is True
    assert vars(parser.parse_args([f"--no-{option}"]))[name] is False
