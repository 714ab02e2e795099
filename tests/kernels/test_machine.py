"""Threads from affinity, quota and environment; the tiers; threads across a fork."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Weights, batch_of, compile_on, logits_of, make_seqs, program_of

from quire.backends.cpu import CpuBackend, cpu_report, default_num_threads, library, load, machine
from quire.backends.cpu.library import TIERS, best_tier
from quire.errors import BackendError, ConfigError


def cgroup(tmp_path: Path, files: dict[str, str], line: str) -> float | None:
    """The quota seen with these files under a cgroup root."""
    for name, text in {**files, "proc/self/cgroup": line}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machine.cgroup_quota_cpus(tmp_path / "cgroup", tmp_path / "proc")


def test_quota_of_version_2_is_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "cgroup/cpu.max": "max 100000\n",
        "cgroup/a/cpu.max": "150000 100000\n",
        "cgroup/a/b/cpu.max": "400000 100000\n",
    }
    assert cgroup(tmp_path, files, "0::/a/b\n") == 1.5


def test_quota_of_version_1(tmp_path: Path) -> None:
    files = {
        "cgroup/cpu/x/cpu.cfs_quota_us": "250000\n",
        "cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup(tmp_path, files, "4:cpu,cpuacct:/x\n2:memory:/y\n") == 2.5


def test_no_quota_and_nonsense(tmp_path: Path) -> None:
    files = {"cgroup/cpu.max": "what\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
             "cgroup/cpu/cpu.cfs_period_us": "100000\n"}  # fmt: skip
    assert cgroup(tmp_path, files, "0::/../../escape\n") is None


def test_a_part_of_a_cpu_may_be_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_THREADS", raising=False)
    monkeypatch.setattr(machine, "allowed_cpus", lambda: 8)
    for quota, threads in (
        (None, 8),
        (0.1, 1),
        (0.5, 1),
        (1.1, 1),
        (1.25, 2),
        (2.0, 2),
        (2.9, 3),
        (64.0, 8),
    ):
        monkeypatch.setattr(machine, "cgroup_quota_cpus", lambda quota=quota: quota)
        assert default_num_threads() == threads
    monkeypatch.setenv("QUIRE_THREADS", "3")
    assert default_num_threads() == 3


def test_tiers(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ISA", isa)
    report = cpu_report()
    assert report.isa == isa
    assert report.problem is None
    assert isa in report.built_isas
    assert isa in report.runnable_isas
    assert f"tier {isa}" in CpuBackend(1).capabilities.description


@pytest.mark.parametrize(
    ("available", "intel", "amd"),
    [
        (TIERS[:6], "amx", "amx"),
        (TIERS[:5], "avx512", "avx512_bf16"),
        (("generic", "avx512_bf16"), "avx512_bf16", "avx512_bf16"),
        (TIERS[:4], "avx512", "avx512"),
        (("generic",), "generic", "generic"),
        (("generic", "neon_dotprod", "neon_i8mm"), "neon_i8mm", "neon_i8mm"),
    ],
)
def test_the_best_tier(available: tuple[str, ...], intel: str, amd: str) -> None:
    assert best_tier(available, is_intel=True) == intel
    assert best_tier(available, is_intel=False) == amd


@pytest.fixture(scope="module")
def tiers_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Returns the best tier of an emulated aarch64 processor, and then all of them."""
    if platform.machine() == "aarch64":
        pytest.skip("this processor has tiers of aarch64 itself")
    compiler, qemu = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    if compiler is None or qemu is None:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user-static")
    root, out = Path(__file__).parents[2], tmp_path_factory.mktemp("aarch64")
    native = root / "native"
    generator = native / "generate_structs.py"
    subprocess.run([sys.executable, generator, root / "src/quire", out], check=True)
    includes = [f"-I{folder}" for folder in (native / "include", native / "src", out)]
    source, program = native / "print_native_tier.cpp", out / "print_native_tier"
    subprocess.run([compiler, "-static", *includes, source, "-o", program], check=True)

    def tiers(cpu: str) -> list[str]:
        return subprocess.check_output([qemu, "-cpu", cpu, program], text=True).split(";")

    return tiers


@pytest.mark.long
@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("cortex-a72", ["generic", "generic"]),
        ("cortex-a76", ["neon_dotprod", "generic", "neon_dotprod"]),
        ("max", ["neon_i8mm", "generic", "neon_dotprod", "neon_i8mm"]),
    ],
)
def test_tiers_of_emulated_processors(
    tiers_of: Callable[[str], list[str]], cpu: str, expected: list[str]
) -> None:
    assert tiers_of(cpu) == expected


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="avx2"):
        load("avx1024")


def test_an_installation_without_a_tier_for_this_processor_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load.cache_clear()
    monkeypatch.setattr(library, "built_tiers", lambda: ("amx",))
    monkeypatch.setattr(library, "runnable_tiers", lambda: ("generic", "avx2"))
    with pytest.raises(BackendError, match=r"\(amx\), but generic, avx2; reinstall Quire"):
        load()
    monkeypatch.setattr(library, "built_tiers", lambda: ("avx2", "amx"))
    with pytest.raises(BackendError, match="cannot run it; it can run generic, avx2"):
        load("amx")
    load.cache_clear()


def test_a_tier_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load.cache_clear()
    monkeypatch.setattr(library, "built_tiers", lambda: ("avx2",))
    monkeypatch.setattr(library, "runnable_tiers", lambda: ("generic", "avx2"))
    with pytest.raises(BackendError, match=r"has avx2; to have all tiers, .* QUIRE_TIERS=all pip"):
        load("generic")
    load.cache_clear()


def test_a_wrong_step_is_refused_and_harms_nothing(backend: CpuBackend) -> None:
    weights = Weights()
    model = compile_on(backend, program_of(lambda x, _: ([], x), 32, weights), weights)
    [seq] = make_seqs([20])
    good = batch_of([(seq, 20)])
    expected = logits_of(model.step(good))
    for field, value in (
        ("token_ids", 1 << 20), ("positions", 7), ("block_tables", 1 << 20),
        ("block_tables", -1), ("context_lens", 1 << 30), ("logits_rows", 20), ("seq_starts", 1),
    ):  # fmt: skip
        bad = batch_of([(make_seqs([20])[0], 20)])
        getattr(bad, field).reshape(-1)[0] = value
        with pytest.raises(BackendError):
            model.step(bad)
    assert np.array_equal(logits_of(model.step(good)), expected)
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model.step(good)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    weights = Weights()
    model = compile_on(CpuBackend(3), program_of(lambda x, _: ([], x), 32, weights), weights)
    [seq] = make_seqs([20])
    batch = batch_of([(seq, 20)])
    expected = logits_of(model.step(batch)).tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if logits_of(model.step(batch)).tobytes() == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert logits_of(model.step(batch)).tobytes() == expected
