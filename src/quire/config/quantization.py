"""The values of `quantization`, and the reasons for which others are refused.

vLLM's names mean checkpoints that are quantised already, fp8, or mixtures of experts. None of them
means one of the formats here. Those of a checkpoint's own method are taken where it is settled
(`planning/choices.py`); all others are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from quire.errors import ConfigError, quoted

Quantization = Literal[
    "int8", "int8_w8a8", "int4", "int4_w4a8", "int4_head4", "int4_w4a8_head4"
]  # fmt: skip
HEAD_4 = "_head4"
"""Ends the names of formats whose head has 4 bits, as the other matrices have."""

MEANINGS: dict[Quantization, str] = {
    "int8": "8-bit weights, 16-bit activations",
    "int8_w8a8": "8-bit weights, 8-bit activations",
    "int4": "4-bit weights, 16-bit activations; 8-bit head",
    "int4_w4a8": "4-bit weights, 8-bit activations; 8-bit head",
    "int4_head4": "4-bit weights and head, 16-bit activations",
    "int4_w4a8_head4": "4-bit weights and head, 8-bit activations",
}

_CHECKPOINTS = (
    "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "compressed-tensors",
    "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed",
    "quark", "inc", "humming", "torchao", "gpt_oss_mxfp4", "deepseek_v4_fp8", "bitsandbytes",
)  # fmt: skip
_NARROW_FLOATS = (
    "fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp4", "mxfp8",
    "nvfp4_per_token",
)  # fmt: skip
_EXPERTS = ("experts_int8", "moe_wna16", "int8_per_channel_weight_only")

_REASONS: dict[str, str] = {
    **dict.fromkeys(_CHECKPOINTS, "it names checkpoints that are quantised already"),
    **dict.fromkeys(_NARROW_FLOATS, "narrow floating-point weights are not available"),
    **dict.fromkeys(_EXPERTS, "it quantises mixtures of experts only"),
    "gguf": "the model is not a GGUF file; give one as the model",
    "online": "the format itself is what is named here",
}


def available(weight_formats: Collection[str]) -> list[Quantization]:
    """The values that work on a backend with these formats."""
    return [known for known in MEANINGS if known.removesuffix(HEAD_4) in weight_formats]


def resolve_quantization(name: str | None, weight_formats: Collection[str]) -> Quantization | None:
    """The format of the matrices; None: not quantised. `weight_formats`: those of the backend.

    Raises ConfigError for a name that is not available, with those that are.
    """
    if name is None:
        return None
    works = available(weight_formats)
    if name in works:
        return name
    reason = _REASONS.get(name, "not on this backend" if name in MEANINGS else "unknown name")
    choices = "; ".join(f"{known} ({MEANINGS[known]})" for known in works)
    raise ConfigError(
        f"quantization={quoted(name)} is not available: {reason}; "
        + (f"use {choices}, or leave it out" if works else "leave it out")
    )
