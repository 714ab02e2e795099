"""Checkpoints of FP8, bitsandbytes, NVFP4 and act-order, made from a random model, and what their
numbers are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

Tensors = dict[str, torch.Tensor]
Packer = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
GROUP = 32
BLOCK = (48, 40)
"""Divides no matrix of the models below evenly, and no group divides its columns."""
HELD_BLOCK = (48, 32)
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip
"""Dettmers et al. 2023, "QLoRA", appendix E."""
_HALF = [0, 0.0625, 8, 12, 4, 6, 2, 3]
FP4 = (np.array([*_HALF, *(-x for x in _HALF)], np.float32) / np.float32(12)).tolist()
"""bitsandbytes, `functional.py`, `get_4bit_type`."""


def bit_words(codes: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """Codes of 2, 4 or 8 bits along an axis, the first in the lowest bits of a word."""
    count = 32 // bits
    moved = codes.to(torch.int64).movedim(axis, -1)
    split = moved.reshape(*moved.shape[:-1], -1, count)
    packed = sum(split[..., i] << (bits * i) for i in range(count))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed)
    return packed.to(torch.int32).movedim(-1, axis).contiguous()


def words(codes: torch.Tensor, axis: int) -> torch.Tensor:
    """8 codes a word."""
    return bit_words(codes, 4, axis)


def as_fp8_blocks(
    base: str, weight: torch.Tensor, block: tuple[int, int] = BLOCK
) -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    high, wide = -(-rows // block[0]), -(-columns // block[1])
    scales = torch.rand(high, wide) + 0.5
    full = scales.repeat_interleave(block[0], 0)[:rows]
    full = full.repeat_interleave(block[1], 1)[:, :columns]
    codes = (weight / full).to(torch.float8_e4m3fn)
    stored = {f"{base}.weight": codes, f"{base}.weight_scale_inv": scales}
    return stored, codes.float() * full


def as_held_fp8_blocks(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    return as_fp8_blocks(base, weight, HELD_BLOCK)


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


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def as_nvfp4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Source: compressed-tensors, `compressors/nvfp4/base.py`, `lifecycle/forward.py`."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // 16, 16)
    top = (448 * 6 / weight.abs().max()).reshape(1)
    scales = (groups.abs().amax(2) / 6 * top).to(torch.float8_e4m3fn)
    spread = (scales.float() / top)[..., None]
    codes = ((groups / spread)[..., None] - E2M1).abs().argmin(-1).reshape(rows, columns)
    stored = {
        f"{base}.weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8),
        f"{base}.weight_scale": scales,
        f"{base}.weight_global_scale": top,
        f"{base}.input_global_scale": torch.ones(1),
    }
    back = E2M1[codes].reshape(groups.shape) * spread
    return stored, back.reshape(rows, columns)


def as_fp4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    return as_nf4(base, weight, "fp4", FP4)


def as_nf4(
    base: str, weight: torch.Tensor, kind: str = "nf4", levels: list[float] = NF4
) -> tuple[Tensors, torch.Tensor]:
    table, flat = np.array(levels, np.float32), weight.numpy().reshape(-1)
    absmax = np.abs(flat.reshape(-1, 64)).max(1)
    scaled = flat.reshape(-1, 64) / absmax[:, None]
    codes = np.abs(scaled[..., None] - table).argmin(-1).astype(np.uint8).reshape(-1)
    stored = {
        f"{base}.weight": torch.from_numpy(codes[::2] << 4 | codes[1::2]).reshape(-1, 1),
        f"{base}.weight.absmax": torch.from_numpy(absmax),
        f"{base}.weight.quant_map": torch.from_numpy(table),
        f"{base}.weight.quant_state.bitsandbytes__{kind}": state(kind, weight),
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
    "fp8-held-blocks": (
        as_held_fp8_blocks,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(HELD_BLOCK)},
    ),
    "fp8-tensor": (as_fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "float-quantized-rows": (
        as_fp8_rows, compressed("float-quantized", {**FLOATS, "strategy": "channel"})
    ),
    "float-quantized-tensor": (
        as_fp8_tensor, compressed("float-quantized", {**FLOATS, "strategy": "tensor"})
    ),
    "nvfp4": (
        as_nvfp4,
        compressed(
            "nvfp4-pack-quantized",
            {
                "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
                "group_size": 16,
            },
        ),
    ),
    "nf4": (as_nf4, BNB),
    "fp4": (as_fp4, {**BNB, "bnb_4bit_quant_type": "fp4"}),
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
