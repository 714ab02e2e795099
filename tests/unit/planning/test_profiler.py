"""`profiler_config`: what it settles, and what it refuses by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.config.records import ProfilerConfig
from quire.errors import ConfigError
from quire.planning.profiler import profiler_config

TORCH = {"profiler": "torch", "torch_profiler_dir": "traces"}


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert profiler_config(TORCH) == ProfilerConfig(str(tmp_path / "traces"))


def test_neutral_values_of_vllms_fields_pass() -> None:
    given = {
        **TORCH, "torch_profiler_with_flops": False, "torch_profiler_activities": ["CPU"],
        "ignore_frontend": True, "warmup_iterations": 0, "delay_iterations": 3,
        "torch_profiler_with_stack": False, "proton_backend": None,
    }  # fmt: skip
    found = profiler_config(given)
    assert found is not None
    assert found.delay_iterations == 3
    assert not found.torch_profiler_with_stack


@pytest.mark.parametrize("given", [None, {}, {"profiler": None}, {"torch_profiler_dir": ""}])
def test_no_profiler(given: Any) -> None:
    assert profiler_config(given) is None


def test_the_environment_names_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/somewhere")
    assert profiler_config(None) == ProfilerConfig("/somewhere")
    found = profiler_config({**TORCH, "torch_profiler_dir": "/else"})
    assert found == ProfilerConfig("/else")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"profiler": "cuda"}, "profiler='cuda'"), ({"profiler": "torch"}, "must be set"),
        ({"torch_profiler_dir": "x"}, "profiler=torch"), ({"profile": "torch"}, "did you mean"),
        ({**TORCH, "torch_profiler_with_memory": True}, "torch_profiler_with_memory=True"),
        ({**TORCH, "warmup_iterations": False}, "warmup_iterations"),
        ({**TORCH, "max_iterations": -1}, "max_iterations"),
        ({**TORCH, "max_iterations": True}, "max_iterations"),
        ({**TORCH, "torch_profiler_use_gzip": 1}, "torch_profiler_use_gzip"),
        ({**TORCH, "torch_profiler_dir": 3}, "torch_profiler_dir"),
    ],
)  # fmt: skip
def test_others_are_refused_by_name(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^profiler_config: .*{named}"):
        profiler_config(given)
