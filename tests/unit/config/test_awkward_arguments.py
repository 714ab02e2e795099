"""Every engine argument with values that it does not expect: an engine that fits, or an error
of ours that names the argument."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))

from awkward import EVERY, Unprintable, awkward, check_message

from quire.config.engine_args import AsyncEngineArgs, EngineArgs
from quire.config.field_types import check_fields
from quire.errors import ConfigError, QuireError, quoted
from quire.planning.machine import available_memory
from quire.planning.plan import build_engine_config

FIELDS = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
MODEL_NAMES = {
    "model": ("model", "directory"),
    "hf_token": ("hf_token",),
    "spec_model": ("speculative_config.model",),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def build(model_dir: Path, given: dict[str, Any]) -> None:
    """Builds a configuration; what is let through has room in this machine."""
    args = AsyncEngineArgs(**{"model": str(model_dir), "backend": "reference", **given})
    try:
        config = build_engine_config(args)
    except QuireError as error:
        check_message(error, *given, *MODEL_NAMES.get(next(iter(given)), ()))
        return
    cache = config.cache
    assert cache.num_blocks * cache.block_bytes <= available_memory().available_bytes * 1.1
    assert cache.num_blocks < 2**31


@pytest.mark.sweep(24)
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_with_every_awkward_value(model_dir: Path, name: str) -> None:
    for value in EVERY:
        build(model_dir, {name: value})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(FIELDS), value=awkward())
@example(name="num_gpu_blocks_override", value=2**40)
@example(name="seed", value=2**70)
def test_any_field_with_any_value(model_dir: Path, name: str, value: Any) -> None:
    build(model_dir, {name: value})


SIZES = (
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override",
    "kv_cache_memory_bytes", "block_size", "gpu_memory_utilization",
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(
        st.sampled_from(SIZES), st.sampled_from([-1, 1, 16, 17, 2**20, 2**31, 2**40, 2**62, 0.5])
    )
)
def test_sizes_together_never_exceed_the_machine(model_dir: Path, sizes: dict[str, Any]) -> None:
    if sizes:
        build(model_dir, sizes)


@settings(max_examples=100, deadline=None)
@given(awkward())
def test_a_value_is_quoted_at_bounded_length(value: Any) -> None:
    assert len(quoted(value)) < 2000


def test_a_quoted_value_is_itself_where_it_is_short() -> None:
    for value in (1, -2.5, "a", ["a", 1], {"a": [None]}, True):
        assert quoted(value) == repr(value)
    assert quoted(10**5000) == "an integer of 16610 bits"
    assert "Unprintable" in quoted(Unprintable())


def test_a_secret_is_not_told() -> None:
    with pytest.raises(ConfigError, match="hf_token must be a text or True or False, got bytes"):
        check_fields(EngineArgs(hf_token=b"secret"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUIRE_THREADS", "many"), ("QUIRE_THREADS", "0"), ("QUIRE_THREADS", "-3"),
        ("QUIRE_THREADS", "9" * 5000), ("QUIRE_THREADS", "1025"), ("QUIRE_ISA", "sse9"),
        ("QUIRE_BACKEND", "tpu"), ("QUIRE_LOG_STATS_INTERVAL", "often"),
        ("QUIRE_LOG_STATS_INTERVAL", "nan"), ("QUIRE_LOG_STATS_INTERVAL", "-1"),
        ("QUIRE_LOG_STATS_INTERVAL", "1e400"),
    ],
)  # fmt: skip
def test_nonsense_in_the_environment_is_named(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        build_engine_config(EngineArgs(str(model_dir)))
