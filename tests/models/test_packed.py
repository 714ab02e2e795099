"""`quire quantize`: packed weights give the very tokens of the checkpoint, in every format."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import float_tensors, gguf_bytes
from safetensors.numpy import load_file, save_file
from small_disk import small_disk
from tiny_checkpoint import write_tiny_checkpoint

from quire import LLM, SamplingParams
from quire.backends.cpu import CpuBackend, load
from quire.backends.cpu.packing import Packer
from quire.cli import main
from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError, ConfigError
from quire.planning.plan import plan_engine
from quire.planning.quantize import quantize_model
from quire.program.values import WEIGHT_FORMATS
from quire.weights import PACKED_NAME, PackedFile, PackedWriter

PROMPTS: list[Any] = [[1, 2, 3], list(range(40, 80))]
FORMATS = [None, *(name for name in WEIGHT_FORMATS if name != "dense")]

Writer = Callable[..., Path]


pytestmark = pytest.mark.usefixtures("cpu_backend")


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    return write_tiny_checkpoint(directory, tie_word_embeddings=request.param)


def tokens(model: Path, **given: Any) -> list[list[int]]:
    given = {"max_num_batched_tokens": 512, "max_num_seqs": 4, "max_model_len": 256, **given}
    with LLM(str(model), **given) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def pack(model: Path, out: Path, **given: Any) -> Path:
    return quantize_model(EngineArgs(str(model), **given), out).path


def test_a_file_that_is_cut_short_in_use(model_dir: Path, tmp_path: Path) -> None:
    """Its owner is told, each time; another model of the process goes on."""
    prompt, params = {"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4)
    lost, kept = (pack(model_dir, tmp_path / name) for name in ("lost", "kept"))
    with LLM(str(lost), num_gpu_blocks_override=64) as llm, LLM(str(kept)) as other:
        llm.generate(prompt, params, use_tqdm=False)
        os.truncate(lost / PACKED_NAME, 5000)
        for _ in range(2):
            with pytest.raises(CheckpointError, match=rf"{lost / PACKED_NAME}: .*cut short"):
                llm.generate(prompt, params, use_tqdm=False)
        other.generate(prompt, params, use_tqdm=False)


def test_a_checkpoint_that_is_cut_short_while_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_tiny_checkpoint(tmp_path / "model") / "model.safetensors"
    pack_all = Packer.into_memory

    def cut_and_pack(packer: Packer, weights: Any) -> Any:
        os.truncate(file, 8192)
        return pack_all(packer, weights)

    monkeypatch.setattr(Packer, "into_memory", cut_and_pack)
    with pytest.raises(CheckpointError, match=rf"{file}: the file was cut short while in use"):
        LLM(str(tmp_path / "model"), num_gpu_blocks_override=64)


@pytest.mark.parametrize("room", [100_000, 500])
def test_a_disk_without_room_leaves_nothing(
    model_dir: Path, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the weights do not fit nor where a text after them does not."""
    if room == 500:
        monkeypatch.setattr(PackedWriter, "finish", lambda *_: None)
        monkeypatch.setattr(CpuBackend, "pack", lambda *_: None)
    for out in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with small_disk(room), pytest.raises(ConfigError, match=rf"{out}.*cannot be written: File"):
            pack(model_dir, out)
        assert not out.exists()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_same_tokens(model_dir: Path, tmp_path: Path, name: str | None, dtype: Any) -> None:
    out = pack(model_dir, tmp_path / "out", quantization=name, dtype=dtype)
    assert not list(out.glob("*.safetensors"))
    assert tokens(out) == tokens(model_dir, quantization=name, dtype=dtype)


EXPERTS = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 45,
    "norm_topk_prob": True,
}  # fmt: skip
FUSED = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 45}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("Qwen3MoeForCausalLM", EXPERTS), ("GraniteMoeForCausalLM", FUSED)],
)
def test_the_same_tokens_of_experts(
    tmp_path: Path, name: str | None, architecture: str, settings: dict[str, Any]
) -> None:
    """A tensor for each expert's matrix, and one for all of a layer."""
    model = write_tiny_checkpoint(tmp_path / "model", architectures=[architecture], **settings)
    out = pack(model, tmp_path / "out", quantization=name, dtype="bfloat16")
    assert tokens(out) == tokens(model, quantization=name, dtype="bfloat16")


@pytest.mark.parametrize("name", FORMATS)
def test_weights_that_are_not_finite_are_told_without_reading_them(
    tmp_path: Path, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 6] = np.nan
    tensors["model.layers.0.self_attn.q_norm.weight"][3] = np.inf
    save_file(tensors, model / "model.safetensors")
    wanted = "in 2 of 25 tensors, the first is model.layers.0.self_attn.q_norm.weight"
    logger = logging.getLogger("quire.weights.not_finite")
    logger.addHandler(caplog.handler)
    try:
        for load_it in (
            lambda: tokens(model, quantization=name),
            lambda: pack(model, tmp_path / "out", quantization=name),
            lambda: tokens(tmp_path / "out"),
        ):
            caplog.clear()
            load_it()
            # A record may have come to the handler in two ways.
            told = {id(one): one.getMessage() for one in caplog.records}
            assert [wanted in message for message in told.values()].count(True) == 1
    finally:
        logger.removeHandler(caplog.handler)


def test_a_tier_reads_its_own_layout_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    files = {}
    for isa in load().available:
        monkeypatch.setenv("QUIRE_ISA", isa)
        files[isa] = PackedFile(pack(model, tmp_path / isa, quantization="int8") / PACKED_NAME)
    layouts = {isa: [one.layout for one in file.header.sections] for isa, file in files.items()}
    for isa in files:
        monkeypatch.setenv("QUIRE_ISA", isa)
        expected = tokens(model, quantization="int8")
        for other in files:
            if layouts[other] == layouts[isa]:
                assert tokens(tmp_path / other) == expected
                assert contents(files[other]) == contents(files[isa])
            else:
                with pytest.raises(CheckpointError, match=f"tier {other}.*quire quantize"):
                    tokens(tmp_path / other)


def contents(file: PackedFile) -> list[bytes]:
    return [
        file.section(one.name, one.tensors, (one.layout,), one.num_bytes).tobytes()
        for one in file.header.sections
    ]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    out = tmp_path / "out"
    words = ["quantize", str(model), str(out)]
    assert main([*words, "--quantization", "int8", "--dtype", "float32"]) == 0
    assert "int8, float32, for tier" in capsys.readouterr().out
    assert main(words) == 1
    assert "is not empty; give the name of a new directory" in capsys.readouterr().err
    assert main(["quantize", str(out), str(tmp_path / "again")]) == 1
    assert "has packed weights; pack the original" in capsys.readouterr().err
    assert main(["quantize", str(model)]) == 1
    assert "give a model and a new directory, not 1 words" in capsys.readouterr().err
    assert main(["explain", str(out), "--no-timing"]) == 0
    shown = capsys.readouterr().out
    assert f"packed for tier {load().isa} by Quire" in shown
    assert "float32, int8" in shown


def test_calibrated_with_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record names the text; the factors are in the weights, and change some tokens."""
    model = write_tiny_checkpoint(tmp_path / "model")
    text = tmp_path / "notes.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    words = ["quantize", str(model), str(tmp_path / "out"), "-q", "int4", "--calibrate", str(text)]
    assert main(words) == 0
    assert "Calibrated with notes.txt (the first " in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "out"), "--no-timing"]) == 0
    assert "used in place; calibrated with notes.txt (the first " in capsys.readouterr().out
    assert main(["show", str(tmp_path / "out")]) == 0
    assert "of 8 values scaled" in capsys.readouterr().out
    header = PackedFile(tmp_path / "out" / PACKED_NAME).header
    assert header.calibration is not None
    assert 0 < header.calibration.num_scaled <= 8
    other = PackedFile(pack(model, tmp_path / "plain", quantization="int4") / PACKED_NAME)
    assert other.header.calibration is None
    assert contents(other) != contents(PackedFile(tmp_path / "out" / PACKED_NAME))
    assert len(tokens(tmp_path / "out")) == len(PROMPTS)
    with pytest.raises(ConfigError, match=r"enable_lora: .*was packed with --calibrate"):
        plan_engine(EngineArgs(str(tmp_path / "out"), enable_lora=True))


def write_imatrix(path: Path, names: dict[str, int]) -> Path:
    """The first column is far larger than the others."""
    squares = {f"{name}.in_sum2": np.ones((1, size), np.float32) for name, size in names.items()}
    for values in squares.values():
        values[0, 0] = 4096
    counts = {f"{name}.counts": np.ones((1, 1), np.float32) for name in names}
    path.write_bytes(gguf_bytes({"general.type": "imatrix"}, float_tensors(squares | counts)))
    return path


def test_calibrated_with_an_imatrix(tmp_path: Path) -> None:
    """Its names are those of GGUF files; one matrix is enough."""
    model = write_tiny_checkpoint(tmp_path / "model")
    names = {"blk.1.attn_k.weight": 64, "blk.1.ffn_down.weight": 96, "output.weight": 64}
    file = write_imatrix(tmp_path / "imatrix", names)
    args = EngineArgs(str(model), quantization="int8_w8a8")
    found = quantize_model(args, tmp_path / "out", file).calibration
    assert found is not None
    assert (found.file, found.num_tokens, found.num_values) == ("imatrix", 0, 8)
    assert found.num_scaled == 2
    tokens(tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "raw", "words"),
    [
        ({}, b"text " * 200, "--calibrate needs a format to round to"),
        ({"quantization": "int4"}, b"too few", "give a text with at least 64"),
        ({"quantization": "int4"}, b"caf\xe9 " * 200, "must be a text in UTF-8, or an imatrix"),
        ({"quantization": "int4"}, b"GGUF" + bytes(40), "GGUF version 0"),
        ({"quantization": "int4"}, b"", "has 0 tokens"),
        ({"quantization": "int4", "load_format": "dummy"}, b"text " * 200, "random weights"),
    ],
)
def test_what_cannot_calibrate(
    tmp_path: Path, given: dict[str, Any], raw: bytes, words: str
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises((ConfigError, CheckpointError), match=words):
        quantize_model(EngineArgs(str(model), **given), tmp_path / "out", tmp_path / "file")
    assert not (tmp_path / "out").exists()


def test_an_imatrix_of_another_model(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    for names, words in (
        ({"blk.7.attn_q.weight": 64}, "none of its 1 matrices, such as 'blk.7.attn_q.weight'"),
        ({"blk.0.attn_q.weight": 63}, "must have numbers for 64 columns, not 63"),
    ):
        args = EngineArgs(str(model), quantization="int4")
        with pytest.raises(CheckpointError, match=words):
            quantize_model(args, tmp_path / "out", write_imatrix(tmp_path / "imatrix", names))


def test_packed_weights_cannot_be_contradicted(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    out = pack(model, tmp_path / "out", quantization="int8")
    plan = plan_engine(EngineArgs(str(out), quantization="int8", dtype="bfloat16"))
    assert plan.config.model.quantization == "int8"
    assert plan.config.model.weights == "packed"
    with pytest.raises(ConfigError, match=r"packed as int8.*--quantization int8_w8a8"):
        plan_engine(EngineArgs(str(out), quantization="int8_w8a8"))
    with pytest.raises(ConfigError, match=r"packed in bfloat16.*--dtype float32"):
        plan_engine(EngineArgs(str(out), dtype="float32"))
    with pytest.raises(ConfigError, match="packed weights need the CPU backend"):
        plan_engine(EngineArgs(str(out), backend="reference"))
    with pytest.raises(CheckpointError, match="holds no weights"):
        tokens(out, load_format="safetensors")


def test_only_the_cpu_backend_packs(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    with pytest.raises(ConfigError, match="the reference backend is selected"):
        pack(model, tmp_path / "out", backend="reference")
    assert not (tmp_path / "out").exists()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    out = pack(write_tiny_checkpoint(tmp_path / "model"), tmp_path / "out")
    other = pack(write_tiny_checkpoint(tmp_path / "other", intermediate_size=128), tmp_path / "2")
    (out / PACKED_NAME).write_bytes((other / PACKED_NAME).read_bytes())
    with pytest.raises(CheckpointError, match=r"layout .*\[256, 64\].* needs .*\[192, 64\]"):
        tokens(out)


def test_a_second_engine_reads_the_same_pages(tmp_path: Path) -> None:
    out = pack(write_tiny_checkpoint(tmp_path / "model"), tmp_path / "out")
    first = tokens(out)
    with LLM(str(out), max_model_len=128, max_num_batched_tokens=128, max_num_seqs=2):
        assert tokens(out) == first


def test_random_weights_need_no_checkpoint(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model")
    (model / "model.safetensors").unlink()
    found = tokens(model, load_format="dummy")
    assert np.array(found).shape == (len(PROMPTS), 12)
    assert tokens(model, load_format="dummy") == found
    with pytest.raises(CheckpointError, match="holds no weights"):
        tokens(model)
    with pytest.raises(ConfigError, match="load_format='npcache' is not known; use one of auto"):
        tokens(model, load_format="npcache")
    with pytest.raises(ConfigError, match=r"load_format='gguf': .* has no GGUF file"):
        tokens(model, load_format="gguf")
