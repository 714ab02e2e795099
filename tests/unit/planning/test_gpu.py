"""`device="auto"` takes a GPU that computes what it should, and says what it chose."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.backends.cuda import self_check
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.memory import Buffer
from quire.config.engine_args import EngineArgs
from quire.core.parallel.client import _of_engine
from quire.errors import ConfigError
from quire.executor.nodes.rank_spawn import Group, _boots
from quire.planning import gpu
from quire.planning.plan import build_engine_config


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    monkeypatch.delenv("QUIRE_BACKEND", raising=False)
    self_check.check_gpu.cache_clear()


def chosen(model: str, caplog: pytest.LogCaptureFixture, **args: object) -> tuple[str, list[str]]:
    """The backend, and what was said about the choice."""
    with caplog.at_level(logging.INFO, logger="quire"):
        config = build_engine_config(EngineArgs(model=model, **args))  # type: ignore[arg-type]
    return config.device.backend, [m for m in caplog.messages if m.startswith("device=auto")]


def test_a_gpu_that_passes_the_check_is_taken(model: str, caplog: pytest.LogCaptureFixture) -> None:
    backend, said = chosen(model, caplog)
    assert (backend, len(said)) == ("cuda", 1)
    assert "emulated by NumPy" in said[0]


def test_a_gpu_with_other_bits_is_not_taken(
    model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(device: EmulatedDevice, launch: Launch) -> None:
        EmulatedDevice.launch(device, launch)
        device.finish()
        y = launch.args["y"]
        assert isinstance(y, Buffer)
        y.memory.handle[y.begin] ^= 1

    class WrongDevice(EmulatedDevice):
        launch = wrong

    monkeypatch.setattr(self_check, "open_device", lambda _: WrongDevice())
    backend, said = chosen(model, caplog)
    assert backend != "cuda"
    [line] = said
    assert line.endswith("a kernel gives 1 of 900 numbers with other bits")


def test_what_the_gpu_cannot_compute_is_for_the_cpu(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend, said = chosen(model, caplog, pipeline_parallel_size=2)
    assert backend != "cuda"
    [line] = said
    assert "pipeline_parallel_size=2 must be 1 on GPUs" in line


@pytest.mark.parametrize("args", [{"device": "cpu"}, {"backend": "reference"}])
def test_another_device_is_asked_for(
    model: str, caplog: pytest.LogCaptureFixture, args: dict[str, object]
) -> None:
    backend, said = chosen(model, caplog, **args)
    assert backend != "cuda"
    assert said == []


def test_more_ranks_than_gpus(
    model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "num_gpus", lambda: 1)
    backend, said = chosen(model, caplog, tensor_parallel_size=2)
    assert backend != "cuda"
    assert said[0].endswith("the engine has 2 ranks, and CUDA sees 1 GPUs")


def test_a_driver_without_packages(
    model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIRE_CUDA_EMULATED")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: None)
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    backend, said = chosen(model, caplog)
    assert backend != "cuda"
    assert "cuda-core is not installed" in said[0]


def test_a_machine_without_a_driver_imports_nothing(model: str, tmp_path: Path) -> None:
    code = (
        "import sys, ctypes\n"
        "def none(name, *args, **kwargs): raise OSError(name)\n"
        "from quire.config.engine_args import EngineArgs\n"
        "from quire.planning.gpu import reason_against_gpu\n"
        "ctypes.CDLL = none\n"
        "assert reason_against_gpu(EngineArgs(model=sys.argv[1])) is None\n"
        "print([one for one in sys.modules if 'cuda' in one])\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, model], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_ranks_that_gpus_cannot_have(model: str) -> None:
    shared = {"model": model, "device": "cuda"}
    with pytest.raises(ConfigError, match="pipeline_parallel_size=2 must be 1 on GPUs"):
        build_engine_config(EngineArgs(**shared, pipeline_parallel_size=2))  # type: ignore[arg-type]
    args = EngineArgs(**shared, tensor_parallel_size=2)  # type: ignore[arg-type]
    assert build_engine_config(args).parallel.tensor_parallel_size == 2


def test_each_rank_of_each_engine_has_a_gpu(model: str) -> None:
    args = EngineArgs(model=model, device="cuda:1", tensor_parallel_size=2, data_parallel_size=2)
    config = build_engine_config(args, "server")
    found = []
    for number in range(2):
        boots = _boots(Group(_of_engine(config, number), 7), {0: (-1, -1)})
        found.append([boot.config.device.gpu_index for boot in boots.values()])
    assert found == [[1, 2], [3, 4]]
