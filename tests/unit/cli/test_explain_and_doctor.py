"""`quire explain` and `quire doctor`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quire.backends import cpu
from quire.backends.cpu import library, machine
from quire.backends.cuda import CudaBackend
from quire.cli import gpu, main
from quire.cli.commands import doctor as checks
from quire.cli.commands.doctor import Finding
from quire.errors import BackendError


def test_explain_shows_program_memory_and_bounds(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--hf-overrides", '{"num_hidden_layers": 3}', "--load-format", "dummy"]
    assert main(["explain", str(model_dir), *given, "--usage", "server", "--max-num-seqs=5"]) == 0
    text = capsys.readouterr().out
    # As it is compiled: behind the last attention only the wanted rows are computed.
    assert "layers 0..1 x2" in text
    assert "attention(" in text
    assert "take_rows(%attention)" in text[text.index("layer 2") :]
    assert "512 of 512 tokens" in text
    assert "max-body-bytes" in text
    bounds = text[text.index("bounds of a step") :].splitlines()
    assert bounds[2].split() == ["requests", "5"]
    from quire.server import ServerArgs, describe_bounds

    rows = [line.split()[0] for line in text[text.index("bounds of a server") :].splitlines()[1:]]
    for bound in describe_bounds(ServerArgs()):
        assert bound.option.replace("_", "-") in rows
    assert {"max-num-queued-reqs", "max-num-seqs", "max-model-len"} <= set(rows)


def test_the_parameters_add_up(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model_dir)]) == 0
    text = capsys.readouterr().out
    rows = text[text.index("\nparameters") : text.index("\nmemory")].splitlines()[2:]
    counts = [next(int(w.replace(",", "")) for w in row.split() if w[0].isdigit()) for row in rows]
    from safetensors.numpy import load_file

    stored = sum(tensor.size for tensor in load_file(model_dir / "model.safetensors").values())
    assert counts[0] == sum(counts[1:]) == stored


def test_explain_shows_what_a_step_takes(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.config.engine_args import EngineArgs
    from quire.planning.plan import plan_engine
    from quire.units import format_bytes

    given = EngineArgs(str(model_dir), max_num_batched_tokens=300)
    needs = plan_engine(given).needs
    assert main(["explain", str(model_dir), "--max-num-batched-tokens", "300"]) == 0
    text = capsys.readouterr().out
    [row] = [row for row in text.splitlines() if row.startswith("  one step ")]
    assert f" {format_bytes(needs.workspace_bytes)} at most: activations" in row


def test_explain_says_how_the_cache_is_held(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(model_dir), "--kv-cache-dtype", "int8"]) == 0
    assert "(int8: 8 bits a number, a scale for each token and head)" in capsys.readouterr().out
    assert main(["explain", str(model_dir), "--kv-cache-dtype", "nvfp4"]) == 1
    assert "int8 (8 bits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("int4", "int4: 4-bit weights, 16-bit activations; 8-bit head"),
        ("int4_w4a8_head4", "int4_w4a8_head4: 4-bit weights and head, 8-bit activations"),
    ],
)
def test_explain_says_what_the_head_has(
    model_dir: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert main(["explain", str(model_dir), "-q", name]) == 0
    text = capsys.readouterr().out
    assert says in text
    [head] = [row for row in text.splitlines() if " %logits[" in row]
    assert ("int8]" in head) == (name == "int4")


def test_explain_shows_what_a_window_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tiny_checkpoint import write_tiny_checkpoint

    types = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    model = write_tiny_checkpoint(
        tmp_path, architectures=["Qwen2ForCausalLM"], num_hidden_layers=4,
        use_sliding_window=True, sliding_window=65, layer_types=types,
    )  # fmt: skip
    options = ["--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
    assert main(["explain", str(model), *options]) == 0
    text = capsys.readouterr().out
    assert "in 47 blocks, up to 59 while its prompt is computed" in text
    assert "5 of these: layers 0, which see a window of 65" in text
    assert "32 of these: layers 1, which see all tokens" in text
    assert main(["explain", str(model), *options, "--max-model-len", "65"]) == 0
    assert "which see" not in capsys.readouterr().out


def test_explain_says_how_replies_are_read(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.content }}{% for call in "
        "m.tool_calls or [] %}<go>{{ call.function.name }}<with>{{ call.function.arguments | "
        "tojson }}</go>{% endfor %}<end>{% endfor %}{{ '<think>' if add_generation_prompt }}"
    )
    assert main(["explain", str(model_dir), "--chat-template", str(template)]) == 0
    text = capsys.readouterr().out
    assert "qwen3 (the chat template opens it in the prompt)" in text
    assert "json_in_tags (from the chat template: '<go>NAME<with>{...}</go>')" in text
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ["--chat-template", str(template), "--reasoning-parser", "none"]
    assert main(["explain", str(model_dir), *words]) == 0
    text = capsys.readouterr().out
    assert re.search(r"reasoning +not parsed\n", text)
    assert re.search(r"tool calls +not parsed: the chat template shows no tools", text)


def test_explain_in_json(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model_dir), "--json", "--max-model-len", "100"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"]["max_model_len"] == 100
    assert plan["cache"]["num_blocks"] * plan["cache"]["block_size"] >= 100


def test_explain_refuses_what_would_not_start(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(model_dir), "--max-model-len", "9k"]) == 1
    assert "use at most 512" in capsys.readouterr().err


def test_doctor_reports_and_judges(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = main(["doctor"])
    text = capsys.readouterr().out
    assert ("not healthy" in text) == (code == 1)
    for topic in ("software", "processor", "compute", "memory", "models", "server"):
        assert topic in text.splitlines()
    assert "quantization: int8, " in text
    assert "int4_w4a8_head4" in text
    assert "kv_cache_dtype: float32, " in text
    monkeypatch.setattr(checks, "_NEEDED", ("numpy", "no_such_library"))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    bad = [one for one in report["findings"] if one["level"] == "bad"]
    assert any("pip install no_such_library" in (one["remedy"] or "") for one in bad)


def test_doctor_is_not_healthy_without_the_native_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: object) -> None:
        raise BackendError("no library for this processor")

    monkeypatch.delenv("QUIRE_BACKEND", raising=False)
    monkeypatch.setattr(cpu, "load", load)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "BAD   the native library does not load (no library for this processor)" in text
    assert text.endswith("not healthy: see the lines marked BAD\n")


def test_doctor_says_which_tiers_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiers() -> Finding:
        [found] = [one for one in checks.compute() if one.text.startswith("tiers of")]
        return found

    monkeypatch.setattr(library, "runnable_tiers", lambda: ("generic", "avx2"))
    monkeypatch.setattr(library, "built_tiers", lambda: ("avx2",))
    here = "tiers of this installation: {}; this processor can run generic, avx2"
    assert (tiers().level, tiers().text) == ("good", here.format("avx2"))
    monkeypatch.setattr(library, "built_tiers", lambda: ("generic",))
    found = tiers()
    assert (found.level, found.text) == (
        "note", here.format("generic") + "; avx2 would be the fastest",
    )  # fmt: skip
    assert "--no-cache-dir" in (found.remedy or "")


def test_little_memory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.config.memory import AvailableMemory
    from quire.planning import machine as memory

    little = AvailableMemory(10 * 2**20, "the cgroup's limit")
    monkeypatch.setattr(memory, "available_memory", lambda: little)
    first: Finding = next(checks.memory())
    assert (first.level, first.text) == ("note", "10.0 MiB available (the cgroup's limit)")


def test_the_quota_is_the_one_that_threads_are_counted_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_quota_cpus", lambda: 1.5)
    assert next(checks.processor()).text.endswith("for this process, cgroup quota 1.5 CPUs")
    monkeypatch.setattr(machine, "cgroup_quota_cpus", lambda: None)
    assert next(checks.processor()).text.endswith("for this process")


def test_explain_says_what_float16_becomes(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(model_dir), "--dtype", "half"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "arithmetic bfloat16 asked for half: float16 is computed in bfloat16" in text
    assert main(["explain", str(model_dir)]) == 0
    assert "asked for" not in capsys.readouterr().out


def test_explain_says_what_one_token_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of eight experts of each layer, no table of embeddings, the whole head."""
    from tiny_checkpoint import CONFIG, write_tiny_checkpoint

    from quire.units import format_bytes

    model = write_tiny_checkpoint(
        tmp_path, architectures=["Qwen3MoeForCausalLM"], num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=96,
    )  # fmt: skip
    assert main(["explain", str(model), "--dtype", "float32"]) == 0
    text = capsys.readouterr().out
    [row] = [row for row in text.splitlines() if row.startswith("    one token reads")]
    size, inner, layers = CONFIG["hidden_size"], 96, CONFIG["num_hidden_layers"]
    expert = 3 * size * inner
    attention = size * (64 + 32 + 32 + 64) + 2 * size + 2 * 16
    router = size * 8
    numbers = layers * (2 * expert + attention + router) + size * 288 + size + size
    assert f" {format_bytes(4 * numbers)} of them: 2 of 8 experts of a layer" in row
    assert "experts gate_up" in text
    assert "experts(%" in text


def test_several_sockets_get_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "num_memory_nodes", lambda: 2)
    [found] = checks.sockets()
    assert found.remedy is not None
    assert "--data-parallel-size 2" in found.remedy
    monkeypatch.setattr(checks, "num_memory_nodes", lambda: 1)
    [found] = checks.sockets()
    assert (found.level, found.remedy) == ("good", None)


def test_explain_bounds_the_speed_of_a_gpu_by_its_bandwidth(
    model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUIRE_BACKEND", raising=False)
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    given = ["explain", str(model_dir), "--device", "cuda", "--dtype", "float32"]
    assert main(given) == 0
    assert "the cuda backend does not time steps" in capsys.readouterr().out
    monkeypatch.setattr(CudaBackend, "bytes_per_second", 2e9)
    assert main(given) == 0
    text = capsys.readouterr().out
    assert "tokens per second (at most, at 2 GB/s of the device's memory)" in text
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["expected_speed"]
    [speed, *_] = found["speeds"]
    assert speed["name"] == "float32"
    work = speed["work"]["8"]
    read = work["weight_bytes"] + work["kv_bytes"]
    assert speed["streams"]["8"] == pytest.approx(8 * 2e9 / read)
    assert speed["prompt"] is None


def test_doctor_shows_the_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    found = [one.text for one in checks.compute()]
    assert any(text.startswith("--device cuda: CUDA kernels, emulated") for text in found)
    assert any("1024.00 GiB of 1024.00 GiB free" in text for text in found)
    assert any(text.startswith("kernels for GPUs: ") for text in found)
    monkeypatch.delenv("QUIRE_CUDA_EMULATED")
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA Kernel Module  580.159.04  Release\nGCC version: 13\n")
    monkeypatch.setattr(gpu, "_DRIVER", driver)
    monkeypatch.setattr(gpu, "has_packages", lambda: False)
    [finding] = [one for one in checks.compute() if "GPU" in one.text]
    assert "580.159.04" in finding.text
    assert finding.remedy == "pip install quire-engine[cuda,cuda-build]"
