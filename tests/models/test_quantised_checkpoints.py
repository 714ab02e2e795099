"""AWQ, GPTQ and compressed-tensors checkpoints: the same logits as transformers' float32 of them.

Each is made from a random model: its linears are rounded, stored in the layout of the method, and
put back, dequantised, into the model that transformers runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from model_harness import Runner, load
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from quire.backends.base import Backend
from quire.backends.cpu import CpuBackend
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.reference import ReferenceBackend
from quire.config.checkpoint.model_files import read_config
from quire.models import build_program, name_map, shipped_format
from quire.weights import bind, open_checkpoint
from quire.weights.quantised.store import as_shipped

Tensors = dict[str, torch.Tensor]
GROUP = 32


def words(codes: torch.Tensor, axis: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """8 codes a word along an axis; the nibble i has the code order[i] of the eight."""
    moved = codes.to(torch.int64).movedim(axis, -1)
    eights = moved.reshape(*moved.shape[:-1], -1, 8)
    packed = sum(eights[..., order[i]] << (4 * i) for i in range(8))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed)
    return packed.to(torch.int32).movedim(-1, axis).contiguous()


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K], scales and zeros [N, groups], and the weight that they stand for."""
    n, k = weight.shape
    groups = weight.float().reshape(n, k // GROUP, GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(1, 15)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    back = (codes - zeros[..., None]) * scales.float()[..., None]
    return codes.reshape(n, k), scales, zeros, back.reshape(n, k)


def as_awq(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros, back = rounded(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{base}.qweight": words(codes.T, 1, order),
        f"{base}.qzeros": words(zeros.T, 1, order),
        f"{base}.scales": scales.T.contiguous(),
    }, back


def as_gptq(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros, back = rounded(weight)
    return {
        f"{base}.qweight": words(codes.T, 0),
        f"{base}.qzeros": words(zeros.T - 1, 1),
        f"{base}.scales": scales.T.contiguous(),
        f"{base}.g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }, back


def as_packed(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros, back = rounded(weight)
    return {
        f"{base}.weight_packed": words(codes, 1),
        f"{base}.weight_scale": scales,
        f"{base}.weight_zero_point": words(zeros, 0),
        f"{base}.weight_shape": torch.tensor(weight.shape),
    }, back


def as_int8(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (weight.float().abs().amax(1, keepdim=True) / 100).bfloat16()
    codes = (weight.float() / scale.float()).round().clamp(-127, 127)
    return {
        f"{base}.weight": codes.to(torch.int8),
        f"{base}.weight_scale": scale,
    }, codes * scale.float()


def compressed(format: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}
        },
    }


KINDS: dict[str, tuple[Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]], Any]] = {
    "awq": (
        as_awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    ),
    "gptq": (
        as_gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False},
    ),
    "pack-quantized": (
        as_packed,
        compressed(
            "pack-quantized",
            {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": GROUP},
        ),
    ),
    "int-quantized": (
        as_int8,
        compressed("int-quantized", {"num_bits": 8, "symmetric": True, "strategy": "channel"}),
    ),
}


@pytest.fixture(scope="module", params=list(KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A quantised checkpoint's directory and the float32 model that it stands for."""
    pack, config = KINDS[request.param]
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            tie_word_embeddings=False, initializer_range=0.1,
        )
    ).float().eval()  # fmt: skip
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory)
    state, stored = model.state_dict(), {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            stored[name] = tensor
            continue
        parts, state[name] = pack(name.removesuffix(".weight"), tensor)
        stored.update(parts)
    model.load_state_dict(state)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    texts = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(texts | {"quantization_config": config}))
    return directory, model


def test_the_weights_are_those_of_the_checkpoint(made: Any) -> None:
    """Exactly: nothing is rounded on the way."""
    directory, model = made
    config = read_config(directory)
    program = build_program(config)
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    bound = bind(program, store, name_map(config).canonical)
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(bound.get(name).to_float32(), tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("backend", [CpuBackend(2), ReferenceBackend()], ids=["cpu", "reference"])
def test_experts_are_held_as_they_are(kind: str, backend: Backend, tmp_path: Path) -> None:
    """Those of a Qwen3-MoE, whose router is not quantised."""
    pack, config = KINDS[kind]
    key = "ignore" if config["quant_method"] == "compressed-tensors" else "modules_to_not_convert"
    unquantised = [*config.get(key, []), "re:.*mlp.gate$" if key == "ignore" else "gate"]
    torch.manual_seed(1)
    shape = transformers.Qwen3MoeConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, num_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=96, initializer_range=0.1,
        tie_word_embeddings=False,
    )  # fmt: skip
    plain, held = tmp_path / "plain", tmp_path / "held"
    for directory in (plain, held):
        transformers.Qwen3MoeForCausalLM(shape).save_pretrained(directory)
    stored, back = {}, load_file(plain / "model.safetensors")
    for name, tensor in list(back.items()):
        if not name.endswith("proj.weight"):
            stored[name] = tensor
            continue
        parts, weight = pack(name.removesuffix(".weight"), tensor)
        stored.update(parts)
        back[name] = weight.float().contiguous()
    save_file(back, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, held / "model.safetensors")
    texts = json.loads((held / "config.json").read_text())
    texts["quantization_config"] = {**config, key: unquantised}
    (held / "config.json").write_text(json.dumps(texts))
    model = transformers.Qwen3MoeForCausalLM.from_pretrained(
        plain, dtype=torch.float32, experts_implementation="eager"
    )
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = Runner(load(held, backend))
    [logits] = runner.step([(runner.request(tokens), len(tokens))])
    np.testing.assert_allclose(logits, expected, atol=2e-3 * float(np.abs(expected).max()))
    one_by_one = runner.request(tokens)
    alone = [runner.step([(one_by_one, 1)])[0][0] for _ in tokens]
    np.testing.assert_array_equal(np.stack(alone), logits)


@pytest.mark.parametrize(
    "backend",
    [CpuBackend(2), ReferenceBackend(), CudaBackend(EmulatedDevice())],
    ids=["cpu", "reference", "cuda"],
)
def test_logits_are_those_of_transformers(made: Any, backend: Backend) -> None:
    """With q|k|v stacked, gate|up interleaved; a step of the prompt, and a step for each token."""
    directory, model = made
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = Runner(load(directory, backend))
    at_once = runner.request(tokens)
    [logits] = runner.step([(at_once, len(tokens))])
    np.testing.assert_allclose(logits, expected, atol=2e-3 * float(np.abs(expected).max()))
    one_by_one = runner.request(tokens)
    alone = [runner.step([(one_by_one, 1)])[0][0] for _ in tokens]
    np.testing.assert_array_equal(np.stack(alone), logits)
