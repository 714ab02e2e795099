"""`bench latency`, `throughput` and `startup` on a tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quire.cli import main


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", "reference")


def bench(command: str, model: Path, out: Path, *words: str) -> dict[str, object]:
    assert main(["bench", command, str(model), "--output-json", str(out), *words]) == 0
    found: dict[str, object] = json.loads(out.read_text())
    return found


def test_latency(model_dir: Path, tmp_path: Path) -> None:
    words = "--input-len 8 --output-len 3 --batch-size 2 --num-iters-warmup 1 --num-iters 4"
    found = bench("latency", model_dir, tmp_path / "r.json", *words.split())
    latencies = found["latencies"]
    assert isinstance(latencies, list)
    assert len(latencies) == 4
    assert found["avg_latency"] == pytest.approx(sum(latencies) / 4)
    assert isinstance(found["percentiles"], dict)
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]


def test_throughput(model_dir: Path, tmp_path: Path) -> None:
    words = "--num-prompts 6 --input-len 8 --output-len 3 --num-warmups 1"
    found = bench("throughput", model_dir, tmp_path / "r.json", *words.split())
    assert found["num_requests"] == 6
    total = found["total_num_tokens"]
    assert isinstance(total, int)
    assert total >= 6 * 11  # random bytes that are no text become longer when they are read again
    assert found["tokens_per_second"] == pytest.approx(total / found["elapsed_time"])  # type: ignore[operator]
    assert found["output_tokens_per_second"] == pytest.approx(18 / found["elapsed_time"])  # type: ignore[operator]


@pytest.mark.parametrize(("words", "is_on"), [((), True), (("--no-speculation",), False)])
def test_results_say_whether_the_engine_guessed(
    model_dir: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    is_on: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lengths = "--input-len 8 --output-len 3"
    latency = f"{lengths} --batch-size 1 --num-iters-warmup 0 --num-iters 1".split()
    throughput = f"{lengths} --num-prompts 1".split()
    for command, sizes in (("latency", latency), ("throughput", throughput)):
        found = bench(command, model_dir, tmp_path / "r.json", *sizes, *words)
        assert found["speculation"] is is_on
        assert f"Speculation: {'on' if is_on else 'off'}" in capsys.readouterr().out


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_shape_is_measured_without_its_weights(
    model_dir: Path, tmp_path: Path, quantization: str
) -> None:
    """A config.json is enough, and a tokenizer where the prompts are texts."""
    shape = tmp_path / "shape"
    shape.mkdir()
    shutil.copy(model_dir / "config.json", shape)
    words = ["--load-format", "dummy", "--output-len", "3"]
    if quantization != "none":
        words += ["--quantization", quantization]
    few = "--input-len 8 --batch-size 2 --num-iters-warmup 0 --num-iters 2 --skip-tokenizer-init"
    found = bench("latency", shape, tmp_path / "r.json", *words, *few.split())
    assert len(found["latencies"]) == 2  # type: ignore[arg-type]
    for file in model_dir.glob("tokenizer*"):
        shutil.copy(file, shape)
    found = bench(
        "throughput", shape, tmp_path / "r.json", *words, "--num-prompts=2", "--input-len=8"
    )
    assert found["num_requests"] == 2


def test_startup(model_dir: Path, tmp_path: Path) -> None:
    words = "--num-iters-cold 1 --num-iters-warmup 0 --num-iters-warm 1 --max-model-len 64"
    found = bench("startup", model_dir, tmp_path / "r.json", *words.split())
    assert 0 < found["avg_warm_startup_time"] < found["avg_warm_first_token_time"]  # type: ignore[operator]
    assert found["cold_startup_times"]


def test_an_engine_that_does_not_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "startup", "--model", str(tmp_path), "--num-iters-cold", "1"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"quire bench startup: the engine did not start: {tmp_path} holds no config.json: it is "
        "not a Hugging Face model directory"
    )


def test_what_cannot_be_measured_is_refused(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "latency", str(model_dir), "--input-len", "4k"]) == 1
    assert "more than the model's 512" in capsys.readouterr().err
    assert main(["bench", "throughput", str(model_dir), "--num-prompts", "1"]) == 1
    assert "longer than max_model_len" in capsys.readouterr().err
    assert main(["bench", "latency", "--batch-size", "0"]) == 1


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_steps_are_recorded(model_dir: Path, tmp_path: Path, command: str) -> None:
    few = "--batch-size 2 --num-iters-warmup 0" if command == "latency" else "--num-prompts 2"
    words = ["bench", command, str(model_dir), *few.split(), "--input-len=8", "--output-len=3"]
    assert main([*words, "--profile"]) == 1
    where = f"--profiler-config.torch_profiler_dir={tmp_path}"
    assert main([*words, "--profile", "--profiler-config.profiler=torch", where]) == 0
    [trace] = tmp_path.iterdir()
    assert trace.name.endswith(".pt.trace.json.gz")
