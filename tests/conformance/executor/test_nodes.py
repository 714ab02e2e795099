"""Ranks on several machines, which are processes of this one here: the tokens of one rank, and the
end of a machine or of the engine is noticed on both sides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from executor_plans import config_of, outputs
from ports import free_ports
from rank_certificates import write_certificates
from tiny_checkpoint import write_tiny_checkpoint

from quire.core.engine_core import EngineCore
from quire.errors import ConfigError, EngineDeadError, RankError
from quire.executor.multiproc import MultiprocExecutor
from quire.executor.nodes.tls import TlsConnection
from quire.version import __version__

KEY = "a secret of all machines"
Other = Callable[..., "subprocess.Popen[str]"]
OLD_VERSION = """
import runpy, quire.version
quire.version.__version__ = "0.0.1"
runpy.run_module("quire", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def port() -> int:
    return free_ports()


@pytest.fixture
def other(model_dir: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    """Starts machine 1."""
    monkeypatch.setenv("QUIRE_RANK_KEY", KEY)
    started: list[subprocess.Popen[str]] = []

    def start(
        model: Path = model_dir,
        key: str = KEY,
        program: tuple[str, str] = ("-m", "quire"),
        **environment: str,
    ) -> subprocess.Popen[str]:
        words = ["--nnodes", "2", "--node-rank", "1", "--master-port", str(port), "--headless"]
        process = subprocess.Popen(
            [sys.executable, *program, "serve", str(model), *words],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
                "QUIRE_RANK_KEY": key,
                **environment,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def engine(model_dir: Path, port: int, **given: Any) -> MultiprocExecutor:
    config = config_of(model_dir, nnodes=2, master_port=port, **given)
    return MultiprocExecutor(config)


@pytest.mark.parametrize(
    "given",
    [
        {"tensor_parallel_size": 2, "backend": "reference"},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "backend": "cpu"},
    ],
    ids=["parts", "stages"],
)
def test_machines_have_the_tokens_of_one_rank(
    model_dir: Path, other: Other, port: int, given: dict[str, Any]
) -> None:
    machine = other()
    executor = engine(model_dir, port, **given)
    config = config_of(model_dir, nnodes=2, master_port=port, **given)
    found = outputs(EngineCore(config, executor))
    assert found == outputs(EngineCore(config_of(model_dir, backend=given["backend"])))
    assert "the engine has ended" in machine.communicate(timeout=60)[1]
    assert machine.returncode == 0


def test_machines_with_gpus_have_the_tokens_of_one(
    model_dir: Path, other: Other, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    machine = other()
    given = {"backend": "cuda", "dtype": "bfloat16"}
    config = config_of(model_dir, nnodes=2, master_port=port, tensor_parallel_size=2, **given)
    found = outputs(EngineCore(config, MultiprocExecutor(config)))
    assert found == outputs(EngineCore(config_of(model_dir, **given)))
    machine.communicate(timeout=60)
    assert machine.returncode == 0


@pytest.mark.parametrize("split", [(4, 1), (2, 2)], ids=["parts", "stages"])
def test_machines_with_certificates_have_the_same_tokens(
    model_dir: Path,
    other: Other,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: tuple[int, int],
) -> None:
    """Parts exchange values over TLS, and so do stages; the ranks end without an error."""
    for name, path in write_certificates(tmp_path).items():
        monkeypatch.setenv(name, path)
    tensor, stages = split
    machine = other()
    config = config_of(
        model_dir, nnodes=2, master_port=port, backend="cpu",
        tensor_parallel_size=tensor, pipeline_parallel_size=stages,
    )  # fmt: skip
    executor = MultiprocExecutor(config)
    assert all(
        isinstance(one.steps, TlsConnection) == (one.process is None)
        for one in executor._ranks.ranks
    )
    assert outputs(EngineCore(config, executor)) == outputs(
        EngineCore(config_of(model_dir, backend="cpu"))
    )
    assert "the engine has ended" in machine.communicate(timeout=60)[1]
    assert machine.returncode == 0


def until_dead(executor: MultiprocExecutor) -> tuple[str, float]:
    """How the engine ended, and after how many seconds."""
    began_at = time.monotonic()
    while executor.failure() is None and time.monotonic() < began_at + 60:
        time.sleep(0.02)
    took_s = time.monotonic() - began_at
    with pytest.raises(EngineDeadError) as found:
        executor.call("check_health")
    executor.shutdown()
    return str(found.value), took_s


@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGKILL, "node 1 has ended"), (signal.SIGSTOP, "node 1 has sent nothing for")],
)
def test_a_machine_that_ends_is_named(
    model_dir: Path, other: Other, port: int, number: int, text: str
) -> None:
    machine = other()
    executor = engine(model_dir, port, tensor_parallel_size=2)
    machine.send_signal(number)
    found, _ = until_dead(executor)
    assert text in found


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
def test_a_machine_that_is_frozen_before_its_ranks_begin(
    model_dir: Path,
    other: Other,
    port: int,
    has_tls: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if has_tls:
        for name, path in write_certificates(tmp_path).items():
            monkeypatch.setenv(name, path)
    machine = other()

    def freeze() -> None:
        assert machine.stderr is not None
        while "node 1 has connected to the engine" not in machine.stderr.readline():
            pass
        machine.send_signal(signal.SIGSTOP)

    helper = threading.Thread(target=freeze)
    helper.start()
    with pytest.raises((RankError, EngineDeadError), match="node 1 has sent nothing for"):
        engine(model_dir, port, tensor_parallel_size=2)
    helper.join()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_machines_end(
    model_dir: Path,
    other: Other,
    port: int,
    part: int,
    number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Machines and their ranks, in turn: nothing is left, also on a machine that is stopped."""
    times = []
    for turn in range(10 * part, 10 * part + 10):
        machine = other()
        executor = engine(model_dir, port, tensor_parallel_size=2)
        [rank] = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
        is_rank = turn % 2 == 1
        os.kill(int(rank) if is_rank else machine.pid, number)
        found, took_s = until_dead(executor)
        assert ("rank 1" if is_rank else "node 1") in found
        times.append(took_s)
        until = time.monotonic() + 60
        while Path(f"/proc/{rank}/fd").exists() and time.monotonic() < until:
            if number == signal.SIGSTOP and not is_rank:
                machine.kill()  # a machine that stands still keeps its ranks until it goes on
            time.sleep(0.02)
        assert not Path(f"/proc/{rank}/fd").exists() or not os.listdir(f"/proc/{rank}/fd")
        machine.kill()
        machine.communicate()
    with capsys.disabled():
        print(
            f"\n{signal.Signals(number).name}: {len(times)} machines and ranks, reported after "
            f"{sorted(times)[len(times) // 2]:.2f} s (median), {max(times):.2f} s (most)"
        )
    assert max(times) < 15.0


def test_a_rank_of_another_machine_that_is_killed_is_named(
    model_dir: Path, other: Other, port: int
) -> None:
    machine = other()
    executor = engine(model_dir, port, tensor_parallel_size=2)
    [rank] = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
    os.kill(int(rank), signal.SIGKILL)
    found, _ = until_dead(executor)
    assert found == "rank 1 (part 1 of 2) was killed by signal 9"
    assert machine.wait(20) == 0


def test_a_machine_with_other_weights_is_refused(
    tmp_path: Path, model_dir: Path, other: Other, port: int
) -> None:
    machine = other(write_tiny_checkpoint(tmp_path / "tiny", seed=1))
    with pytest.raises(ConfigError, match=r"node 1: .* has other weights .*: fingerprint"):
        engine(model_dir, port, tensor_parallel_size=2)
    assert "has other weights" in machine.communicate(timeout=60)[1]
    assert machine.returncode == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"program": ("-c", OLD_VERSION)}, f"runs Quire 0.0.1, and the engine runs {__version__}"),
        ({"QUIRE_ISA": "generic"}, "has the native library generic"),
    ],
    ids=["version", "tier"],
)
def test_a_machine_that_would_compute_other_bits_is_refused(
    model_dir: Path, other: Other, port: int, given: dict[str, Any], text: str
) -> None:
    machine = other(**given)
    with pytest.raises(ConfigError, match=text):
        engine(model_dir, port, tensor_parallel_size=2, backend="cpu")
    assert text in machine.communicate(timeout=60)[1]
    assert machine.returncode == 1


def test_a_machine_with_another_key_stays_out(model_dir: Path, other: Other, port: int) -> None:
    wrong = other(key="another secret text")
    right: list[subprocess.Popen[str]] = []

    def join_after_the_refusal() -> None:
        wrong.wait(60)
        right.append(other())

    helper = threading.Thread(target=join_after_the_refusal)
    helper.start()
    executor = engine(model_dir, port, tensor_parallel_size=2)
    executor.shutdown()
    helper.join()
    assert "QUIRE_RANK_KEY must be the same" in wrong.communicate(timeout=60)[1]
    assert right[0].wait(20) == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nnodes": 3}, "nnodes=3 must divide the 2 ranks"),
        ({"nnodes": 2, "node_rank": 1}, "node_rank=1 needs --headless"),
        ({"nnodes": 2, "node_rank": 2}, "node_rank=2 must be from 0 to nnodes-1=1"),
        ({"nnodes": 2, "master_port": 0}, "master_port=0 must be from 1"),
    ],
)
def test_impossible_machines_are_refused(model_dir: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config_of(model_dir, tensor_parallel_size=2, **given)


def test_a_key_is_required(model_dir: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_RANK_KEY", "short")
    with pytest.raises(ConfigError, match="QUIRE_RANK_KEY"):
        engine(model_dir, port, tensor_parallel_size=2)
