"""`load_format="dummy"` in every format that is held: an engine without a file of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import CONFIG

from quire import LLM, SamplingParams
from quire.backends.cpu import CpuBackend, load
from quire.backends.cpu.lowering import fuse
from quire.backends.cpu.packing import Packer
from quire.backends.cpu.packing_alike import AlikePacker
from quire.backends.cpu.stored_weights import stored_weights
from quire.cli import main
from quire.config.engine_args import EngineArgs
from quire.config.memory import AvailableMemory
from quire.errors import DoesNotFitError
from quire.models import build_program
from quire.planning import facts as facts_module
from quire.planning.plan import plan_engine
from quire.planning.quantize import quantize_model
from quire.program.passes import run_passes
from quire.weights.dummy import DummyStore

MIXTURE: dict[str, Any] = {
    **CONFIG, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 256, "head_dim": 64, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    **CONFIG, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
}  # fmt: skip
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
FORMATS: dict[str, dict[str, Any]] = {
    "Q4_K": {"quant_method": "gguf", "types": {"*": "Q4_K"}},
    "mixed": {"quant_method": "gguf", "types": {
        "*": "Q8_0", "model.layers.0.mlp.experts.*.down_proj.weight": "Q6_K"}},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128,
            "modules_to_not_convert": ["mlp.gate"]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 64, "modules_to_not_convert":
             ["mlp.gate"]},
    "gptq in an order": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True,
                         "modules_to_not_convert": ["mlp.gate"]},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["mlp.gate"]},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
            "llm_int8_skip_modules": ["mlp.gate"]},
    "nvfp4": {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": NVFP4}}},
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}},
}  # fmt: skip


def _write(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _tokens(model: Path, **given: Any) -> list[list[int]]:
    given = {
        "load_format": "dummy", "max_num_batched_tokens": 128, "max_model_len": 64,
        "max_num_seqs": 4, **given,
    }  # fmt: skip
    with LLM(str(model), skip_tokenizer_init=True, **given) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in ([1, 2, 3], [5, 7])]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_checkpoints(name: str, tmp_path: Path) -> None:
    model = _write(tmp_path / "model", {**MIXTURE, "quantization_config": FORMATS[name]})
    found = _tokens(model)
    assert [len(tokens) for tokens in found] == [8, 8]
    assert _tokens(model, max_num_seqs=1) == found


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    model = _write(tmp_path / "model", {**GPT_OSS, "quantization_config": {
        "quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})  # fmt: skip
    assert [len(tokens) for tokens in _tokens(model)] == [8, 8]


@pytest.mark.parametrize("quantization", ["int4", "int8", "int8_w8a8", "int4_w4a8"])
def test_formats_that_numbers_are_rounded_to(quantization: str, tmp_path: Path) -> None:
    model = _write(tmp_path / "model", MIXTURE)
    assert [len(tokens) for tokens in _tokens(model, quantization=quantization)] == [8, 8]


@pytest.mark.parametrize("quantization", ["int4_w4a8", "gguf_a8", None])
def test_a_packed_file_of_random_weights(quantization: str | None, tmp_path: Path) -> None:
    """`quire quantize` writes the numbers that an engine makes in memory."""
    config = dict(MIXTURE)
    if quantization == "gguf_a8":
        config["quantization_config"] = FORMATS["Q4_K"]
    model = _write(tmp_path / "model", config)
    args = EngineArgs(str(model), load_format="dummy", quantization=quantization)
    packed = quantize_model(args, tmp_path / "packed").path
    found = _tokens(packed, load_format="auto")
    assert found == _tokens(model, quantization=quantization)


def test_matrices_of_one_shape_are_rounded_once() -> None:
    """Each has memory of its own, filled to its end; what is not rounded has its own numbers."""
    program = run_passes(build_program({**MIXTURE, "num_experts": 5}), "int4_w4a8")
    library, backend = load(), CpuBackend(2)
    weights = stored_weights(fuse(program), program)
    packers = [Packer(library, backend._pool, DummyStore(program), "bfloat16") for _ in range(2)]
    alike = AlikePacker(packers[1], library, "bfloat16", 2)
    each, found = (
        {weight: place.data for weight, place in one.into_memory(weights).items()}
        for one in (packers[0], alike)
    )
    rounded = {w.param.name: found[w] for w in weights if w.param.format != "dense"}
    assert len(rounded) >= 2 * 4
    for weight in weights:
        name, size = weight.param.name, each[weight].size
        if name not in rounded:
            assert np.array_equal(found[weight], each[weight])
        elif len(weight.param.shape) == 3:
            experts = found[weight].reshape(5, -1)
            assert np.array_equal(experts, experts[[0, 1, 0, 1, 0]])
        if name.startswith("layers.0."):
            sampled = size * 2 // 5 if len(weight.param.shape) == 3 else size
            assert np.array_equal(found[weight][:sampled], each[weight][:sampled])
        if name in rounded and name.startswith("layers.1."):
            first = rounded[name.replace("layers.1.", "layers.0.")]
            assert np.array_equal(rounded[name], first)
            assert not np.shares_memory(rounded[name], first)


@pytest.mark.long
def test_an_override_names_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = _write(tmp_path / "model", MIXTURE)
    overrides = {"quantization_config": FORMATS["Q4_K"]}
    assert _tokens(model, hf_overrides=overrides) == _tokens(
        model, hf_overrides=overrides, quantization="gguf"
    )
    words = ["--hf-overrides", json.dumps(overrides), "--load-format", "dummy"]
    assert main(["explain", str(model), *words, "--skip-tokenizer-init", "--no-timing"]) == 0
    assert "u4 g32 nested+min a16" in capsys.readouterr().out


def _plan(model: Path, memory: int, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    found = AvailableMemory(memory, "the test")
    monkeypatch.setattr(facts_module, "available_memory", lambda: found)
    return plan_engine(
        EngineArgs(str(model), load_format="dummy", skip_tokenizer_init=True, **given)
    )


LARGE = {
    **MIXTURE, "hidden_size": 2048, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "vocab_size": 151936,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
}  # fmt: skip


def test_what_cannot_fit_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape of Qwen3-30B-A3B: 57 GiB in bfloat16, 17 in 4 bits."""
    model = _write(tmp_path / "model", LARGE)
    with pytest.raises(DoesNotFitError) as caught:
        _plan(model, 24 << 30, monkeypatch)
    said = str(caught.value)
    assert "its weights need 56." in said
    assert "22.08 GiB may be used" in said
    assert "quantization='int8' 2" in said
    assert "quantization='int4' 1" in said
    assert said.endswith("which fits")
    with pytest.raises(DoesNotFitError, match=r"'int4' 1.* GiB, which does not fit either"):
        _plan(model, 8 << 30, monkeypatch)
    awq = {"quantization_config": FORMATS["awq"]}
    with pytest.raises(DoesNotFitError, match=r"does not fit: its weights need 1[5-9]\.") as caught:
        _plan(model, 8 << 30, monkeypatch, hf_overrides=awq)
    assert str(caught.value).endswith("GiB, which does not fit either")
    plan = _plan(model, 24 << 30, monkeypatch, quantization="int4")
    assert plan.needs.weight_bytes < 18 << 30
