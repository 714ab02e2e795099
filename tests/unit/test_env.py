"""vLLM's environment variables: those that work, those that are refused, and the rest by name."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest

from quire import env
from quire.config import resolve
from quire.config.engine_args import EngineArgs
from quire.config.vllm_names import vllm_table
from quire.config.vllm_variables import (
    server_defaults,
    unheard_variables,
    variables,
    variables_without_effect,
)
from quire.errors import ConfigError
from quire.planning import environment
from quire.planning.environment import check_environment
from quire.units import GiB, MiB


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("VLLM_", "QUIRE_LOG")):
            monkeypatch.delenv(name)


def test_the_table_has_every_name_once() -> None:
    dropped = {"VLLM_TORCH_PROFILER_DIR", *vllm_table("variables")["dropped"]}
    known, without_effect = variables(), variables_without_effect()
    assert len({*known, *without_effect} - dropped) == 303
    assert not set(known) & without_effect
    assert all(entry.text for entry in known.values())


def test_size_of_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.kv_cache_bytes() is None
    for text, size in (("2", 2 * GiB), ("0.5", GiB // 2), ("0", None), ("", None)):
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", text)
        assert env.kv_cache_bytes() == size
    for text in ("many", "-1", "nan", "1e300"):
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", text)
        with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE"):
            env.kv_cache_bytes()
    assert resolve.resolve_kv_choice(EngineArgs(), GiB).cache_bytes == GiB
    given = EngineArgs(kv_cache_memory_bytes=5)
    assert resolve.resolve_kv_choice(given, GiB).cache_bytes == 5
    blocks = EngineArgs(num_gpu_blocks_override=5)
    assert resolve.resolve_kv_choice(blocks, GiB).cache_bytes is None


def test_cores_of_the_compute_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.compute_cores() is None
    for text, cores in (
        ("0-3", (0, 1, 2, 3)), ("0,2", (0, 2)), ("0-1,8", (0, 1, 8)), ("auto", None),
        ("nobind", None), ("", None),
    ):  # fmt: skip
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        assert env.compute_cores() == cores
    for text in ("0-3|4-7", "all", "-1", "1-", "3-1,x"):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", text)
        with pytest.raises(ConfigError, match="VLLM_CPU_OMP_THREADS_BIND"):
            env.compute_cores()


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.backends.cpu import machine

    monkeypatch.setattr(machine, "cgroup_quota_cpus", lambda: None)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: 8)
    monkeypatch.delenv("QUIRE_THREADS", raising=False)
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "3")
    assert machine.default_num_threads() == 5
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "9")
    assert machine.default_num_threads() == 1
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    assert machine.default_num_threads() == 2
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "some")
    with pytest.raises(ConfigError, match="VLLM_CPU_NUM_OF_RESERVED_CPU"):
        env.reserved_cores()


def test_cores_that_this_process_may_not_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.backends.registry import choose_device

    monkeypatch.delenv("QUIRE_BACKEND", raising=False)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "99998")
    with pytest.raises(ConfigError, match=r"99998.*may use the cores"):
        choose_device("cpu", 1)
    first = min(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(first))
    assert choose_device("cpu", None).cores == (first,)


def test_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "debug")
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "3")
    assert (env.log_level(), env.stats_interval_s()) == ("DEBUG", 3.0)
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("QUIRE_LOG_STATS_INTERVAL", "5")
    assert (env.log_level(), env.stats_interval_s()) == ("ERROR", 5.0)
    monkeypatch.delenv("QUIRE_LOG_STATS_INTERVAL")
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "-1")
    assert env.stats_interval_s() == 10.0
    assert env.configures_logging()
    monkeypatch.setenv("VLLM_CONFIGURE_LOGGING", "0")
    assert not env.configures_logging()


def test_defaults_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_defaults() == {}
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "7")
    monkeypatch.setenv("VLLM_MAX_STOP_STRINGS", "3")
    assert server_defaults() == {"keep_alive_timeout": 7, "max_stop_strings": 3}
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "few")
    with pytest.raises(ConfigError, match="VLLM_MAX_N_SEQUENCES must be a number"):
        server_defaults()


def test_the_size_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HTTP_MAX_REQUEST_BODY_SIZE", "1048576")
    assert server_defaults() == {"max_body_bytes": 1 << 20}
    for text in ("0", "-1"):
        monkeypatch.setenv("VLLM_HTTP_MAX_REQUEST_BODY_SIZE", text)
        with pytest.raises(ConfigError, match="VLLM_HTTP_MAX_REQUEST_BODY_SIZE must be more than"):
            server_defaults()


def test_the_bytes_that_a_request_may_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.max_download_bytes() == 256 * MiB
    for text, size in (("1", MiB), ("0", 0)):
        monkeypatch.setenv("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", text)
        assert env.max_download_bytes() == size
    for text in ("-1", "2.5", "many"):
        monkeypatch.setenv("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", text)
        with pytest.raises(ConfigError, match="VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB must be"):
            env.max_download_bytes()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "0")
    unheard_variables()
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    with pytest.raises(ConfigError, match=r"VLLM_USE_MODELSCOPE.*Hugging Face hub; unset it"):
        unheard_variables()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a check of the environment logs."""
    caplog.clear()
    logging.getLogger("quire").addHandler(caplog.handler)
    try:
        check_environment(EngineArgs())
    finally:
        logging.getLogger("quire").removeHandler(caplog.handler)
    return list(dict.fromkeys(record.getMessage() for record in caplog.records))


def test_what_changes_nothing_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment._warn.cache_clear()
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "1")
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("VLLM_CPU_KV_CACHE_SPACE", "4")
    monkeypatch.setenv("VLLM_ZZZZ", "4")
    assert [*warnings(caplog), *warnings(caplog)] == [
        "variables of vLLM without effect here: VLLM_USE_DEEP_GEMM, VLLM_USE_V1",
        "unknown environment variables: VLLM_CPU_KV_CACHE_SPACE (did you mean "
        "VLLM_CPU_KVCACHE_SPACE?), VLLM_ZZZZ",
    ]
    with pytest.raises(ConfigError, match=r"fail_on_environ_validation.*VLLM_ZZZZ"):
        check_environment(EngineArgs(fail_on_environ_validation=True))


def test_all_own_variables_are_known() -> None:
    read = set(re.findall(r"`(QUIRE_[A-Z_]+)`", Path(env.__file__).read_text()))
    assert read == set(env.OWN_VARIABLES)


def test_a_misspelled_name_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment._warn.cache_clear()
    monkeypatch.setenv("QUIRE_THREAD", "1")
    monkeypatch.setenv("QUIRE_THREADS", "1")
    for name in ("PORT", "SERVICE_HOST", "PORT_8000_TCP", "TEST_SEED", "IMAGE"):
        monkeypatch.setenv(f"QUIRE_{name}", "1")
    assert warnings(caplog) == [
        "environment variables without effect: QUIRE_THREAD (did you mean QUIRE_THREADS?)"
    ]


def test_the_hub_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    assert env.offline_variable() is None
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert env.offline_variable() == "TRANSFORMERS_OFFLINE"
    assert env.hub_is_offline()
