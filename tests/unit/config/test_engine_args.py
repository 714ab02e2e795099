"""Engine arguments: unknown names suggest, foreign ones refuse, neutral ones pass."""

from __future__ import annotations

import dataclasses

import pytest

from quire.config.engine_args import AsyncEngineArgs, EngineArgs
from quire.config.names import check_names
from quire.config.vllm_names import unsupported
from quire.errors import ConfigError, UnknownArgumentError


@pytest.mark.parametrize("cls", [EngineArgs, AsyncEngineArgs])
def test_an_unknown_name_suggests_the_nearest(cls: type[EngineArgs]) -> None:
    with pytest.raises(UnknownArgumentError, match="'max_model_length'; did you mean max_model_"):
        cls(max_model_length=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        cls(max_model_length=5)  # type: ignore[call-arg]


def test_a_name_like_nothing_gets_no_suggestion() -> None:
    with pytest.raises(UnknownArgumentError, match=r"unknown engine argument 'zzzz'$"):
        check_names({"zzzz": 1}, ["model"])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("prefill_context_parallel_size", 2, "parallel ranks work"),
        ("lora_target_modules", ["q_proj"], "its files name"),
        ("prefill_context_parallel_size", True, "parallel ranks work"),
    ],
)
def test_what_does_not_work_is_refused_with_the_reason(
    name: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        EngineArgs(**{name: value})  # type: ignore[arg-type]


def test_spelled_out_defaults_of_other_engines_pass() -> None:
    args = EngineArgs(
        "m",
        prefill_context_parallel_size=1,  # type: ignore[call-arg]
        compilation_config=None,
        load_format="safetensors",
        swap_space=4,
    )
    assert args.model == "m"


def test_no_name_is_both_supported_and_not() -> None:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert not known & set(unsupported())


def test_subclass_has_its_own_fields() -> None:
    assert AsyncEngineArgs(enable_log_requests=True).enable_log_requests is True
    with pytest.raises(UnknownArgumentError):
        EngineArgs(enable_log_requests=True)  # type: ignore[call-arg]
