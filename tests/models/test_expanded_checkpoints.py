"""FP8, bitsandbytes and act-order checkpoints: their matrices are read as plain numbers.

Each is made from a random model. What a stored matrix stands for is computed here, by the formulas
of the projects that write such files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_harness import Runner, load
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from quire.backends.cpu import CpuBackend
from quire.config.engine_args import EngineArgs
from quire.config.model_files import read_config
from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import build_program, name_map, shipped_format
from quire.planning.plan import plan_engine
from quire.weights import bind, open_checkpoint
from quire.weights.quantised.expand import E4M3
from quire.weights.quantised.store import as_shipped

Tensors = dict[str, torch.Tensor]
Packer = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
GROUP = 32
BLOCK = (48, 40)
"""Divides no matrix of the models below evenly."""
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
"""Dettmers et al. 2023, "QLoRA", appendix E."""


def words(codes: torch.Tensor, axis: int) -> torch.Tensor:
    """8 codes a word along an axis, the first one in the lowest bits."""
    moved = codes.to(torch.int64).movedim(axis, -1)
    eights = moved.reshape(*moved.shape[:-1], -1, 8)
    packed = sum(eights[..., i] << (4 * i) for i in range(8))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed)
    return packed.to(torch.int32).movedim(-1, axis).contiguous()


def as_fp8_blocks(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    high, wide = -(-rows // BLOCK[0]), -(-columns // BLOCK[1])
    scales = torch.rand(high, wide) + 0.5
    full = scales.repeat_interleave(BLOCK[0], 0)[:rows]
    full = full.repeat_interleave(BLOCK[1], 1)[:, :columns]
    codes = (weight / full).to(torch.float8_e4m3fn)
    stored = {f"{base}.weight": codes, f"{base}.weight_scale_inv": scales}
    return stored, codes.float() * full


def as_fp8_tensor(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    stored = {
        f"{base}.weight": codes,
        f"{base}.weight_scale": scale.reshape(1),
        f"{base}.input_scale": torch.ones(1),
    }
    return stored, codes.float() * scale


def as_fp8_rows(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    codes = (weight / scales.float()).to(torch.float8_e4m3fn)
    stored = {f"{base}.weight": codes, f"{base}.weight_scale": scales}
    return stored, codes.float() * scales.float()


def state(kind: str, weight: torch.Tensor, **more: Any) -> torch.Tensor:
    found = {
        "quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape),
    }  # fmt: skip
    return torch.frombuffer(bytearray(json.dumps(found | more).encode()), dtype=torch.uint8)


def as_nf4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    table, flat = np.array(NF4, np.float32), weight.numpy().reshape(-1)
    absmax = np.abs(flat.reshape(-1, 64)).max(1)
    scaled = flat.reshape(-1, 64) / absmax[:, None]
    codes = np.abs(scaled[..., None] - table).argmin(-1).astype(np.uint8).reshape(-1)
    stored = {
        f"{base}.weight": torch.from_numpy(codes[::2] << 4 | codes[1::2]).reshape(-1, 1),
        f"{base}.weight.absmax": torch.from_numpy(absmax),
        f"{base}.weight.quant_map": torch.from_numpy(table),
        f"{base}.weight.quant_state.bitsandbytes__nf4": state("nf4", weight),
    }
    back = table[codes] * np.repeat(absmax, 64)
    return stored, torch.from_numpy(back.reshape(weight.shape))


def as_nested_nf4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The scales are bytes, in blocks of 16 here (256 as a rule), less their mean."""
    stored, _ = as_nf4(base, weight)
    absmax = stored[f"{base}.weight.absmax"].numpy()
    offset = float(np.float32(absmax.mean()))
    centred = absmax - np.float32(offset)
    levels = np.linspace(-1, 1, 256, dtype=np.float32)
    blocks = np.arange(absmax.size) // 16
    largest = np.array([np.abs(centred[blocks == b]).max() for b in range(blocks[-1] + 1)])
    largest = largest.astype(np.float32)
    bytes_ = np.abs((centred / largest[blocks])[:, None] - levels).argmin(1).astype(np.uint8)
    name = f"{base}.weight.quant_state.bitsandbytes__nf4"
    stored |= {
        f"{base}.weight.absmax": torch.from_numpy(bytes_),
        f"{base}.weight.nested_absmax": torch.from_numpy(largest),
        f"{base}.weight.nested_quant_map": torch.from_numpy(levels),
        name: state("nf4", weight, nested_blocksize=16, nested_offset=offset),
    }
    scales = levels[bytes_] * largest[blocks] + np.float32(offset)
    packed = stored[f"{base}.weight"].numpy().reshape(-1)
    codes = np.stack((packed >> 4, packed & 15), 1).reshape(-1)
    back = np.array(NF4, np.float32)[codes] * np.repeat(scales, 64)
    return stored, torch.from_numpy(back.reshape(weight.shape))


def as_bytes(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    largest = weight.abs().amax(1)
    codes = (weight / largest[:, None] * 127).round().to(torch.int8)
    stored = {
        f"{base}.weight": codes,
        f"{base}.SCB": largest,
        f"{base}.weight_format": torch.zeros((), dtype=torch.uint8),
    }
    return stored, codes.float() * largest[:, None] / 127


def in_order(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes, zeros, scales, the group of each column, and what they stand for."""
    rows, columns = weight.shape
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns)) // GROUP
    order = order.to(torch.int32)
    num_groups = columns // GROUP
    scales = (0.02 + torch.rand(rows, num_groups) * 0.01).half()
    zeros = torch.randint(1, 16, (rows, num_groups))
    spread = scales.float()[:, order.long()]
    codes = (weight / spread + zeros[:, order.long()]).round().clamp(0, 15).to(torch.int64)
    return codes, zeros, scales, order, (codes - zeros[:, order.long()]) * spread


def as_gptq(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, zeros, scales, order, back = in_order(weight)
    stored = {
        f"{base}.qweight": words(codes.T, 0),
        f"{base}.qzeros": words(zeros.T - 1, 1),
        f"{base}.scales": scales.T.contiguous(),
        f"{base}.g_idx": order,
    }
    return stored, back


def as_packed(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, zeros, scales, order, back = in_order(weight)
    stored = {
        f"{base}.weight_packed": words(codes, 1),
        f"{base}.weight_scale": scales,
        f"{base}.weight_zero_point": words(zeros, 0),
        f"{base}.weight_g_idx": order,
        f"{base}.weight_shape": torch.tensor(weight.shape),
    }
    return stored, back


def compressed(format: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


FLOATS = {"num_bits": 8, "type": "float", "symmetric": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
KINDS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "fp8-blocks": (
        as_fp8_blocks,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)},
    ),
    "fp8-tensor": (as_fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "float-quantized-rows": (
        as_fp8_rows, compressed("float-quantized", {**FLOATS, "strategy": "channel"})
    ),
    "float-quantized-tensor": (
        as_fp8_tensor, compressed("float-quantized", {**FLOATS, "strategy": "tensor"})
    ),
    "nf4": (as_nf4, BNB),
    "nf4-nested": (as_nested_nf4, {**BNB, "bnb_4bit_use_double_quant": True}),
    "bitsandbytes-8": (as_bytes, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "gptq-act-order": (
        as_gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
    ),
    "packed-act-order": (
        as_packed,
        compressed(
            "pack-quantized",
            {
                "num_bits": 4, "symmetric": False, "strategy": "group", "group_size": GROUP,
                "actorder": "group",
            },
        ),
    ),
}  # fmt: skip


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            tie_word_embeddings=False, initializer_range=0.1,
        )
    )  # fmt: skip


def experts() -> torch.nn.Module:
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=64, max_position_embeddings=128,
            initializer_range=0.1,
        )
    )  # fmt: skip


def write(kind: str, model: torch.nn.Module, directory: Path) -> Tensors:
    """The checkpoint, and what each of its tensors stands for under the names of the file."""
    pack, config = KINDS[kind]
    model.float().eval().save_pretrained(directory)
    stored, meant = {}, {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        meant[name] = tensor
        if name.endswith("proj.weight"):
            parts, meant[name] = pack(name.removesuffix(".weight"), tensor)
            stored.update(parts)
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    texts = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(texts | {"quantization_config": config}))
    return meant


def weights_of(directory: Path) -> Any:
    config = read_config(directory)
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    return bind(build_program(config), store, name_map(config).canonical)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_the_formula(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    meant = write(kind, llama(), tmp_path)
    bound = weights_of(tmp_path)
    for name, tensor in meant.items():
        found = bound.get(name).to_float32()
        np.testing.assert_array_equal(found, tensor.float().numpy(), err_msg=name)


def test_experts_are_read_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    meant = write("fp8-blocks", experts(), tmp_path)
    bound = weights_of(tmp_path)
    names = [name for name in meant if ".experts." in name]
    assert names
    for name in names:
        np.testing.assert_array_equal(bound.get(name).to_float32(), meant[name].numpy())


@pytest.mark.parametrize("kind", ["fp8-blocks", "nf4-nested", "gptq-act-order"])
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = llama()
    meant = write(kind, model, tmp_path)
    model.load_state_dict(meant)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = Runner(load(tmp_path, CpuBackend(2)))
    [logits] = runner.step([(runner.request(tokens), len(tokens))])
    np.testing.assert_allclose(logits, expected, atol=1e-3 * float(np.abs(expected).max()))


def test_every_byte_is_the_number_that_torch_has_of_it() -> None:
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(E4M3, codes.float().numpy())


def test_it_is_said_that_they_are_expanded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write("fp8-blocks", llama(), tmp_path)
    config = read_config(tmp_path)
    with caplog.at_level(logging.INFO, logger="quire"):
        as_shipped(open_checkpoint(tmp_path), shipped_format(config))
    assert "FP8 with a scale for each 48 x 40: 14 matrices are expanded" in caplog.text


def test_a_format_may_be_asked_for_beside(tmp_path: Path) -> None:
    """The numbers are rounded like those of any checkpoint; the method's own name changes none."""
    write("fp8-blocks", llama(), tmp_path)
    for name, held in (("int8", "int8"), ("fp8", None), (None, None)):
        args = EngineArgs(str(tmp_path), quantization=name, skip_tokenizer_init=True)
        assert plan_engine(args).config.model.quantization == held


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("fp8-blocks", "weight_scale_inv", lambda t: t[:, :-1].contiguous()),
        ("fp8-tensor", "weight_scale", lambda t: t.repeat(3)),
        ("nf4", "weight.absmax", lambda t: t[1:].contiguous()),
        ("nf4", "weight.quant_map", lambda t: t * float("nan")),
        ("nf4", "weight", lambda t: t[1:].contiguous()),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", lambda t: t[1:].contiguous()),
        ("nf4-nested", "weight.nested_quant_map", lambda t: t[:9].contiguous()),
        ("gptq-act-order", "g_idx", lambda t: t + 1),
        ("gptq-act-order", "g_idx", lambda t: t[1:].contiguous()),
        ("gptq-act-order", "g_idx", lambda t: t - 1),
    ],
)
def test_parts_that_do_not_fit_are_named(
    kind: str, part: str, change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    write(kind, llama(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    base = "model.layers.0.mlp.down_proj"
    stored[f"{base}.{part}"] = change(stored[f"{base}.{part}"])
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"down_proj\.weight' do not fit together"):
        weights_of(tmp_path).get(f"{base}.weight")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"blocks of \[128\]"),
        ({**BNB, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type 'int4'"),
        ({**KINDS["gptq-act-order"][1], "bits": 3}, "bits 3"),
        (compressed("float-quantized", {**FLOATS, "strategy": "token"}), "strategy 'token'"),
    ],
)
def test_other_numbers_are_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        shipped_format({"quantization_config": config})
