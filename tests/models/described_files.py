"""Checkpoints in rarer layouts of quantisation, made from a random model, and what their numbers
are by the formulas of the projects that write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from quantised_files import (
    E2M1,
    GROUP,
    Packer,
    Tensors,
    as_fp8_rows,
    as_fp8_tensor,
    as_gptq,
    bit_words,
    compressed,
    words,
)
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Kind:
    """A checkpoint: how its matrices are packed, and where that is described."""

    pack: Packer
    config: Mapping[str, Any]
    file: str = "config.json"
    held: int = 14
    """How many of the 14 matrices are held as they are stored."""
    section: str | None = None
    others: Mapping[str, Packer | None] = field(default_factory=dict)
    """Packers of modules with other endings; None: a module that is not quantised."""


def three_bit_words(codes: torch.Tensor, axis: int) -> torch.Tensor:
    """32 codes of 3 bits in 3 words. Source: AutoGPTQ, `qlinear_cuda.py`, `pack`."""
    moved = codes.to(torch.int64).movedim(axis, -1)
    c = moved.reshape(*moved.shape[:-1], -1, 32)
    first = sum(c[..., i] << (3 * i) for i in range(10)) | c[..., 10] << 30
    second = c[..., 10] >> 2 & 1 | sum(c[..., 11 + i] << (3 * i + 1) for i in range(10))
    second = second | c[..., 21] << 31
    third = c[..., 21] >> 1 & 3 | sum(c[..., 22 + i] << (3 * i + 2) for i in range(10))
    packed = torch.stack((first, second, third), -1) & 0xFFFFFFFF
    packed = torch.where(packed >= 2**31, packed - 2**32, packed)
    return packed.flatten(-2).to(torch.int32).movedim(-1, axis).contiguous()


def gptq(bits: int, *, symmetric: bool = False) -> Packer:
    """Groups of neighbours, without g_idx where zeros are in the middle."""

    def pack(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        groups = columns // GROUP
        scales = (weight.reshape(rows, groups, GROUP).abs().amax(2) / 2 ** (bits - 1)).half()
        zeros = torch.randint(1, 2**bits, (rows, groups))
        if symmetric:
            zeros = torch.full((rows, groups), 2 ** (bits - 1))
        spread = scales.float().repeat_interleave(GROUP, 1)
        of_columns = zeros.repeat_interleave(GROUP, 1)
        codes = (weight / spread + of_columns).round().clamp(0, 2**bits - 1).to(torch.int64)

        def packed(numbers: torch.Tensor, axis: int) -> torch.Tensor:
            if bits == 3:
                return three_bit_words(numbers, axis)
            return bit_words(numbers, bits, axis)

        stored = {
            f"{base}.qweight": packed(codes.T, 0),
            f"{base}.qzeros": packed(zeros.T - 1, 1),
            f"{base}.scales": scales.T.contiguous(),
            f"{base}.bias": torch.zeros(rows).half(),
        }
        if not symmetric:
            stored[f"{base}.g_idx"] = torch.arange(columns, dtype=torch.int32) // GROUP
        return stored, (codes - of_columns) * spread

    return pack


def as_awq(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    stored, back = gptq(4)(base, weight)
    codes = _codes_of(stored[f"{base}.qweight"], 0).T
    zeros = _codes_of(stored[f"{base}.qzeros"], 1) + 1
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def packed(numbers: torch.Tensor) -> torch.Tensor:
        eights = numbers.reshape(len(numbers), -1, 8)[:, :, order]
        return words(eights.flatten(1), 1)

    return {
        f"{base}.qweight": packed(codes.T),
        f"{base}.qzeros": packed(zeros),
        f"{base}.scales": stored[f"{base}.scales"],
    }, back


def _codes_of(packed: torch.Tensor, axis: int) -> torch.Tensor:
    moved = packed.to(torch.int64).movedim(axis, -1)
    split = torch.stack([moved >> (4 * i) & 15 for i in range(8)], -1)
    return split.flatten(-2).movedim(-1, axis)


def as_packed(base: str, weight: torch.Tensor, bits: int) -> tuple[Tensors, torch.Tensor]:
    rows, zero = len(weight), 1 << (bits - 1)
    scales = (weight.reshape(rows, -1, GROUP).abs().amax(2) / (zero - 1)).bfloat16()
    spread = scales.float().repeat_interleave(GROUP, 1)
    codes = (weight / spread).round().clamp(-zero, zero - 1).to(torch.int64)
    return {
        f"{base}.weight_packed": bit_words(codes + zero, bits, 1),
        f"{base}.weight_scale": scales,
        f"{base}.weight_shape": torch.tensor(weight.shape),
    }, codes * spread


def _fp4(weight: torch.Tensor, factors: torch.Tensor, group: int) -> tuple[torch.Tensor, ...]:
    """Pairs of codes in bytes, and what they stand for with a factor for each group."""
    spread = factors.repeat_interleave(group, 1)
    codes = ((weight / spread)[..., None] - E2M1).abs().argmin(-1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes] * spread


def as_modelopt_nvfp4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Source: ModelOpt, `nvfp4_tensor.py`: a code times its scale times weight_scale_2."""
    largest = weight.reshape(len(weight), -1, 16).abs().amax(2)
    top = weight.abs().max() / (6 * 448)
    scales = (largest / 6 / top).to(torch.float8_e4m3fn)
    packed, back = _fp4(weight, scales.float() * top, 16)
    return {
        f"{base}.weight": packed,
        f"{base}.weight_scale": scales,
        f"{base}.weight_scale_2": top,
        f"{base}.input_scale": torch.tensor(0.1),
    }, back


def mxfp4(code: str) -> Packer:
    def pack(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = weight.reshape(len(weight), -1, 32).abs().amax(2)
        exponents = largest.log2().floor() - 2
        packed, back = _fp4(weight, exponents.exp2(), 32)
        scales = (exponents + 127).to(torch.uint8)
        return {f"{base}.{code}": packed, f"{base}.weight_scale": scales}, back

    return pack


def as_int8(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = weight.abs().amax(1) / 127
    codes = (weight / scales[:, None]).round()
    stored = {f"{base}.weight": codes.to(torch.int8), f"{base}.weight_scale": scales}
    return stored, codes * scales[:, None]


def hqq(bits: int, axis: int, group: int = 64) -> Packer:
    """Source: HQQ, `core/quantize.py` and `core/bitpack.py`."""

    def pack(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        grouped = weight.reshape(-1, group) if axis == 1 else weight.reshape(group, -1)
        low, high = grouped.amin(axis, keepdim=True), grouped.amax(axis, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).half()
        zero = (-low / scale.float()).half()
        codes = (grouped / scale.float() + zero.float()).round().clamp(0, 2**bits - 1)
        back = ((codes - zero.float()) * scale.float()).reshape(weight.shape)
        codes = codes.to(torch.int32)
        if bits == 3:
            padded = torch.zeros(-(-len(codes) // 10) * 10, codes.shape[1], dtype=torch.int32)
            padded[: len(codes)] = codes
            pieces = padded.chunk(10)
            packed = sum(piece << (27 - 3 * i) for i, piece in enumerate(pieces))
        else:
            pieces = codes.chunk(8 // bits)
            packed = sum(piece << (8 - bits * (i + 1)) for i, piece in enumerate(pieces))
            packed = packed.to(torch.uint8)
        return {
            f"{base}.W_q": packed,
            f"{base}.scale": scale,
            f"{base}.zero": zero,
            f"{base}.shape": torch.tensor(weight.shape),
            f"{base}.nbits": torch.tensor(bits),
            f"{base}.group_size": torch.tensor(group),
            f"{base}.axis": torch.tensor(axis),
        }, back

    return pack


def as_torchao_int4(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Source: torchao, `int4_tensor.py`; FBGEMM, `pack_int4` and `int4_row_quantize_zp`."""
    groups = weight.reshape(len(weight), -1, GROUP)
    low = groups.amin(2)
    scales = ((groups.amax(2) - low) / 15).bfloat16()
    zeros = (low + scales.float() * 8).bfloat16()
    numbers = (groups - zeros.float()[..., None]) / scales.float()[..., None]
    codes = numbers.round().clamp(-8, 7)
    back = codes * scales.float()[..., None] + zeros.float()[..., None]
    codes = codes.reshape(weight.shape).to(torch.int8)
    return {
        f"{base}._weight_qdata": codes[:, ::2] & 15 | codes[:, 1::2] << 4,
        f"{base}._weight_scale": scales.T.contiguous(),
        f"{base}._weight_zero_point": zeros.T.contiguous(),
    }, back.reshape(weight.shape)


def torchao(pack: Packer) -> Packer:
    """The tensors of another packer under the names of torchao."""

    def renamed(base: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, back = pack(base, weight)
        return {
            f"{base}._weight_qdata": stored[f"{base}.weight"],
            f"{base}._weight_scale": stored[f"{base}.weight_scale"],
        }, back

    return renamed


def torchao_config(name: str, **data: Any) -> dict[str, Any]:
    kind = {"default": {"_type": name, "_data": data}}
    return {"quant_method": "torchao", "quant_type": kind}


def quark(**weight: Any) -> dict[str, Any]:
    return {
        "quant_method": "quark", "exclude": ["lm_head"], "export": {"pack_method": "reorder"},
        "global_quant_config": {"weight": weight, "input_tensors": None},
    }  # fmt: skip


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AUTO_GPTQ = {key: value for key, value in GPTQ.items() if key != "quant_method"}
MODELOPT = {"producer": {"name": "modelopt", "version": "0.29.0"}}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MIXED = {
    "quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "format": "float-quantized", "targets": [r"re:.*self_attn\.(q|k|v|o)_proj$"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token"},
        },
        "group_1": {
            "format": "pack-quantized", "targets": [r"re:.*mlp\..*"],
            "weights": {"num_bits": 4, "strategy": "group", "group_size": GROUP},
        },
    },
}  # fmt: skip

DESCRIBED: dict[str, Kind] = {
    "gptq-2": Kind(gptq(2), {**GPTQ, "bits": 2}, held=0),
    "gptq-3": Kind(gptq(3), {**GPTQ, "bits": 3}, held=0),
    "gptq-8": Kind(gptq(8, symmetric=True), {**GPTQ, "bits": 8}),
    "gptq-8-zeros": Kind(gptq(8), {**GPTQ, "bits": 8}, held=0),
    "gptq-hidden-order": Kind(as_gptq, GPTQ),
    "gptq-dynamic": Kind(
        gptq(4),
        {
            **GPTQ,
            "dynamic": {
                r"-:.*\.down_proj": {},
                r"+:.*\.k_proj": {"bits": 8},
                r"-:.*\.o_proj": {},
            },
        },
        held=8,
        others={"down_proj": None, "k_proj": gptq(8), "o_proj": None},
    ),
    "gptq-file": Kind(gptq(4), AUTO_GPTQ, "quantize_config.json"),
    "awq-file": Kind(
        as_awq, {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"},
        "quant_config.json",
    ),
    "modelopt-fp8": Kind(
        as_fp8_tensor,
        {**MODELOPT, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        "hf_quant_config.json",
    ),
    "modelopt-nvfp4": Kind(
        as_modelopt_nvfp4,
        {
            **MODELOPT,
            "quantization": {
                "quant_algo": "NVFP4", "group_size": 16,
                "exclude_modules": ["lm_head", "*layers.1.mlp*"],
            },
        },
        "hf_quant_config.json",
        held=11,
        others={"1.mlp.gate_proj": None, "1.mlp.up_proj": None, "1.mlp.down_proj": None},
    ),
    "modelopt-in-config": Kind(
        as_fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    ),
    "text-config": Kind(gptq(4), GPTQ, section="text_config"),
    "mixed": Kind(
        partial(as_packed, bits=4), _MIXED, held=8, others=dict.fromkeys(_ATTENTION, as_fp8_rows)
    ),
    "packed-8": Kind(
        partial(as_packed, bits=8),
        compressed("pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": GROUP}),
    ),
    "mxfp4-pack": Kind(
        mxfp4("weight_packed"),
        compressed(
            "mxfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
        ),
    ),
    "fbgemm": Kind(
        as_fp8_rows,
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
         "modules_to_not_convert": ["lm_head"]},
    ),
    "auto-round": Kind(
        gptq(4, symmetric=True),
        {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": True,
         "data_type": "int", "packing_format": "auto_round:auto_gptq",
         "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 16}}},
        held=13,
        others={"0.mlp.down_proj": None},
    ),
    "auto-round-awq": Kind(
        as_awq,
        {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": False,
         "packing_format": "auto_round:auto_awq"},
    ),
    "hqq-4": Kind(hqq(4, 1), {"quant_method": "hqq", "quant_config": {}}, held=0),
    "hqq-3": Kind(hqq(3, 1), {"quant_method": "hqq", "quant_config": {}}, held=0),
    "hqq-8": Kind(hqq(8, 0), {"quant_method": "hqq", "quant_config": {}}, held=0),
    "torchao-int4": Kind(
        as_torchao_int4,
        torchao_config("Int4WeightOnlyConfig", group_size=GROUP, int4_packing_format="plain"),
        held=0,
    ),
    "torchao-int8": Kind(torchao(as_int8), torchao_config("Int8WeightOnlyConfig"), held=0),
    "torchao-fp8": Kind(
        torchao(as_fp8_rows), torchao_config("Float8WeightOnlyConfig"), held=0
    ),
    "quark-fp8": Kind(as_fp8_tensor, quark(dtype="fp8_e4m3", qscheme="per_tensor")),
    "quark-int8": Kind(as_int8, quark(dtype="int8", qscheme="per_channel", symmetric=True)),
    "quark-mxfp4": Kind(
        mxfp4("weight"), quark(dtype="fp4", qscheme="per_group", group_size=32)
    ),
}  # fmt: skip


def write_described(kind: Kind, model: torch.nn.Module, directory: Path) -> Tensors:
    """The checkpoint; returns what each of its tensors stands for."""
    model.float().eval().save_pretrained(directory)
    stored, meant = {}, {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        meant[name] = tensor
        base = name.removesuffix(".weight")
        pack = next((p for end, p in kind.others.items() if base.endswith(end)), kind.pack)
        if name.endswith("proj.weight") and pack is not None:
            parts, meant[name] = pack(base, tensor)
            stored.update(parts)
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    _describe(kind, directory)
    return meant


def _describe(kind: Kind, directory: Path) -> None:
    path = directory / "config.json"
    if kind.file != "config.json":
        (directory / kind.file).write_text(json.dumps(kind.config))
        return
    config = json.loads(path.read_text())
    if kind.section is None:
        config["quantization_config"] = kind.config
    else:
        config = {
            "architectures": config["architectures"],
            "model_type": "llava",
            kind.section: {**config, "quantization_config": kind.config},
        }
    path.write_text(json.dumps(config))
