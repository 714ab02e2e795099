"""Rounds a checkpoint to one of the formats in which people publish them, to measure speed.

    python bench/quantised_checkpoint.py SOURCE TARGET awq|gptq|w8a8|w4a16

Needs torch. SOURCE has its weights in `model.safetensors`. The matrices of the layers are rounded
to nearest, each for itself, without samples of text, so quality is that of no published
checkpoint. Embedding and head stay as they are. `awq` and `gptq` have 4 bits and groups of 128
numbers, awq with a zero point for each group. `w8a8` and `w4a16` are compressed-tensors: 8 bits
with a scale for each row and activations in 8 bits, and 4 bits with groups of 128.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
_GROUP = 128
_IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""For each group of four bits in a word, its column of the eight."""


def words(codes: torch.Tensor, order: tuple[int, ...] = _IN_ORDER) -> torch.Tensor:
    """Codes [N, K] below 16 as int32 [N, K / 8], eight in a word; the lowest bits have order[0]."""
    eights = codes.to(torch.int64).reshape(codes.shape[0], -1, 8)[..., list(order)]
    packed = (eights << (4 * torch.arange(8))).sum(2)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).contiguous()


def grouped(weight: torch.Tensor, centred: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K], scales and zero points [N, K / 128] of a matrix [N, K]."""
    groups = weight.float().reshape(weight.shape[0], -1, _GROUP)
    low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    if centred:
        scales = (torch.maximum(-low, high) / 7).clamp_min(1e-8)
        zeros = torch.full_like(scales, 8)
    else:
        scales = ((high - low) / 15).clamp_min(1e-8)
        zeros = (-low / scales).round().clamp(0, 15)
    codes = (groups / scales[..., None]).round() + zeros[..., None]
    return codes.clamp(0, 15).reshape(weight.shape), scales, zeros


def as_awq(base: str, weight: torch.Tensor) -> Tensors:
    """A matrix in the form of AutoAWQ's `gemm` kernels: K rows."""
    codes, scales, zeros = grouped(weight, centred=False)
    return {
        f"{base}.qweight": words(codes.T, _AWQ_ORDER),
        f"{base}.qzeros": words(zeros.T, _AWQ_ORDER),
        f"{base}.scales": scales.T.half().contiguous(),
    }


def as_gptq(base: str, weight: torch.Tensor) -> Tensors:
    """A matrix in GPTQ's first format: K / 8 rows, zero points less one."""
    codes, scales, zeros = grouped(weight, centred=True)
    return {
        f"{base}.qweight": words(codes).T.contiguous(),
        f"{base}.qzeros": words(zeros.T - 1),
        f"{base}.scales": scales.T.half().contiguous(),
        f"{base}.g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // _GROUP,
    }


def as_w8a8(base: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors `int-quantized`."""
    scales = (weight.float().abs().amax(1, keepdim=True).clamp_min(1e-8) / 127).bfloat16()
    codes = (weight.float() / scales.float()).round().clamp(-127, 127)
    return {f"{base}.weight": codes.to(torch.int8), f"{base}.weight_scale": scales}


def as_w4a16(base: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors `pack-quantized`."""
    codes, scales, _ = grouped(weight, centred=True)
    return {
        f"{base}.weight_packed": words(codes),
        f"{base}.weight_scale": scales.to(torch.bfloat16),
        f"{base}.weight_shape": torch.tensor(weight.shape),
    }


def _compressed(format_name: str, weights: Mapping[str, Any], inputs: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": format_name, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


_INTEGERS = {"type": "int", "symmetric": True}
FORMATS: Mapping[str, tuple[Callable[[str, torch.Tensor], Tensors], Mapping[str, Any]]] = {
    "awq": (as_awq, {
        "quant_method": "awq", "bits": 4, "group_size": _GROUP, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None,
    }),
    "gptq": (as_gptq, {
        "quant_method": "gptq", "bits": 4, "group_size": _GROUP, "desc_act": False, "sym": True,
        "lm_head": False,
    }),
    "w8a8": (as_w8a8, _compressed(
        "int-quantized",
        {**_INTEGERS, "num_bits": 8, "strategy": "channel", "group_size": None, "dynamic": False},
        {**_INTEGERS, "num_bits": 8, "strategy": "token", "dynamic": True},
    )),
    "w4a16": (as_w4a16, _compressed(
        "pack-quantized",
        {**_INTEGERS, "num_bits": 4, "strategy": "group", "group_size": _GROUP, "dynamic": False},
        None,
    )),
}  # fmt: skip
"""The function that writes a matrix, and the settings for config.json."""


def write(source: Path, target: Path, name: str) -> None:
    """The whole checkpoint: other tensors and files as they are."""
    write_matrix, quantization = FORMATS[name]
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, target)
    tensors: Tensors = {}
    for tensor_name, tensor in load_file(source / "model.safetensors").items():
        if tensor.ndim == 2 and tensor_name.endswith("_proj.weight"):
            tensors |= write_matrix(tensor_name.removesuffix(".weight"), tensor)
        else:
            tensors[tensor_name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization
    (target / "config.json").write_text(json.dumps(config, indent=1))


def main() -> int:
    """Writes the checkpoint that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("format", choices=sorted(FORMATS))
    args = parser.parse_args()
    write(args.source, args.target, args.format)
    return 0


if __name__ == "__main__":
    sys.exit(main())
