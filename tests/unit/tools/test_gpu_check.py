"""`tools.gpu_check` on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.gpu_check import __main__ as command
from tools.gpu_check import bundle, families, parts
from tools.gpu_check.needed import needed_kernels
from tools.gpu_check.parts import EMULATED, PARTS
from tools.gpu_check.report import Row, line_of

from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.planning.speed.timing import decode_step, prompt_step
from quire.weights.dummy import DummyStore

EMULATE = ("--emulated",)


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    monkeypatch.setenv("QUIRE_KV_STORE", "0")


@pytest.mark.parametrize(
    "name", ["launch", "bits", "sampling", "steps", "bandwidth", "families", "ranks"]
)
def test_a_part_reaches_its_goals(name: str) -> None:
    rows = list(PARTS[name].run(EMULATED))
    assert any(row.is_good for row in rows) or name == "bandwidth"
    assert not [row for row in rows if row.is_good is False]


def test_a_difference_misses_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.backends.cuda.twins import linear

    def wrong(*args: object, **kwargs: object) -> None:
        right(*args, **kwargs)  # type: ignore[arg-type]
        kwargs["y"].view(np.uint32)[0] ^= 1  # type: ignore[attr-defined]

    right = linear.reduce
    monkeypatch.setattr(linear, "reduce", wrong)
    rows = {row.name: row for row in PARTS["bits"].run(EMULATED)}
    assert rows["rows with tiles of 64 rows"].is_good
    assert rows["rows with tiles of 64 rows, divided"].value == "1 of 70 differ"
    assert rows["rows with tiles of 64 rows, divided"].is_good is False


@pytest.mark.long
def test_a_check_that_fails_does_not_lose_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an exception, the end of its process, a spoiled GPU or a hang."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for the processes of the parts
    entry = replace(parts.entry_of("faulty_check:check_faults"), most_seconds=300, check_seconds=8)
    monkeypatch.setattr(command, "entry_of", lambda _: entry)
    out = tmp_path / "result.json"
    given = ["--emulated", "--json", str(out), "--part", "faulty_check:check_faults"]
    monkeypatch.setattr(sys, "argv", ["gpu_check", *given, "--seconds", "300"])
    assert command.main() == 1
    [part] = json.loads(out.read_text())["parts"].values()
    assert part["error"] == ""
    found = {row["name"]: str(row["value"]) for row in part["rows"]}
    assert found["before the error"] == "2.0"
    wanted = {
        "raises": "BackendError: the kernel cannot be launched",
        "gives no number": "ValueError: rate is not a number",
        "dies": "the process ended with -11",
        "spoils": "CUDA_ERROR_ILLEGAL_ADDRESS",
        "hangs": "ended after its limit: the check",
    }
    for name, text in wanted.items():
        assert text in found[name]
        assert found[f"after {name}"] == "1.0"
    assert [row["is_good"] for row in part["rows"]].count(False) == 5
    assert "5 missed; failed parts: none" in capsys.readouterr().out


def test_a_part_that_fails_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next part runs nevertheless."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    names = ("faulty_check:check_nothing", "launch")
    given = [part for name in names for part in ("--part", name)]
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--emulated", *given])
    assert command.main() == 1
    out = capsys.readouterr().out
    assert "no memory" in out
    assert "numbers of one kernel" in out
    assert f"failed parts: {names[0]}" in out
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--part", "unknown"])
    with pytest.raises(SystemExit):
        command.main()


@pytest.mark.long
def test_the_whole_check_runs(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    subprocess.run(
        [sys.executable, "-m", "tools.gpu_check", *EMULATE, "--json", str(out)], check=True
    )
    found = json.loads(out.read_text())["parts"]
    assert list(found) == list(PARTS)
    assert all(part["rows"] and not part["error"] for part in found.values())


def test_two_ranks_need_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.gpu_check import ranks

    monkeypatch.setattr(ranks, "num_gpus", lambda: 1)
    [row] = ranks.check_ranks(EmulatedDevice(), replace(EMULATED, is_emulated=False))
    assert (row.value, row.is_good) == ("left out: CUDA sees 1 GPU", None)


def test_a_line_says_what_was_wanted() -> None:
    line = line_of("8b", Row("1 request", 71.23456, "%", ">= 80 %", False))
    assert line.split() == ["8b", "1", "request", "71.23", "%", ">=", "80", "%", "MISSED"]


def test_the_kernels_of_a_model_are_those_that_it_launches() -> None:
    device = EmulatedDevice()
    backend = CudaBackend(device)
    program = families.program_of(families.families()["gemma2"])
    kv, options = families.cache_of(program, backend, "bfloat16"), families.options_of("bfloat16")
    needed = needed_kernels(program, kv, options)
    model = backend.compile(program, DummyStore(program), kv, options)
    device.launches = []
    for batch in (prompt_step(kv, 40, program.vocab_size), decode_step(kv, 1, 39, 200)):
        model.step(replace(batch, sampling=None, want_logits=True))
    assert device.launches
    assert set(device.launches) <= needed


def test_a_bundle_has_what_quire_and_the_gpu_need(tmp_path: Path) -> None:
    pytest.importorskip("tomllib")
    names = {one.partition(">")[0] for one in bundle.requirements()}
    assert {"cuda-core", "cuda-bindings", "msgspec", "numpy"} <= names
    assert "triton" not in str(names)
    kept, left_out = tmp_path / "kept.py", tmp_path / "hf_xet" / "one.so"
    for path in (kept, left_out, tmp_path / "hf_xet-1.8.0.dist-info" / "RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("hf_xet/one.so,sha256=x,3\nhf_xet-1.8.0.dist-info/RECORD,,\n")
    bundle.leave_out(["hf-xet", "numpy"], tmp_path)
    assert kept.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kept.py"]
