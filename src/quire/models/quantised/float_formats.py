"""Reads checkpoints with floating-point codes: the variants of FP8, ModelOpt, Quark, bitsandbytes.

Keys and values: transformers' `utils/quantization_config.py`, vLLM's `quantization/modelopt.py` and
`quantization/quark/quark.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from quire.errors import UnsupportedModelError
from quire.models.quantised.expanded import Expanded
from quire.models.quantised.shipped_linears import (
    WHOLE_ROW_GROUP,
    Config,
    Shipped,
    check_in,
    fp8_format,
    names_of,
    unsupported,
)
from quire.program.values import CodeTable, GroupedFormat

_BITSANDBYTES_GROUP = 64
_NVFP4 = GroupedFormat("e2m1", 16, scale="e4m3")
_E4M3 = ("e4m3", "float8_e4m3fn", "e4m3fn")
_MODELOPT_BLOCK = (128, 128)


def fp8(config: Config) -> Shipped | Expanded:
    """Read FP8. Raises UnsupportedModelError for unknown values."""
    check_in("fmt", config.get("fmt", "e4m3"), _E4M3)
    ignored = names_of(config.get("modules_to_not_convert"), "modules_to_not_convert")
    return held_fp8("fp8", config.get("weight_block_size"), ignored)


def fbgemm_fp8(config: Config) -> Shipped | Expanded:
    """Read FBGEMM's FP8, which has a scale per row."""
    ignored = names_of(config.get("modules_to_not_convert"), "modules_to_not_convert")
    return held_fp8("fbgemm_fp8", None, ignored)


def held_fp8(
    method: str, block: object, ignored: tuple[str, ...], *, quantises_head: bool = False
) -> Shipped | Expanded:
    """Read FP8 with a scale per block, per row or per matrix. It is expanded if the blocks cannot
    be groups."""
    expanded = expanded_fp8(method, block)
    format = fp8_format(expanded.block)
    if format is None:
        return expanded
    return Shipped(
        method, "fp8", format, None, ignored, quantises_head=quantises_head, expanded=expanded
    )


def expanded_fp8(method: str, block: object) -> Expanded:
    """Read expanded FP8. Raises UnsupportedModelError if `block` is not two sizes."""
    if block is None:
        return Expanded(method, "fp8", "weights in FP8", 8)
    if (
        not isinstance(block, list | tuple)
        or len(block) != 2
        or not all(isinstance(size, int) and size > 0 for size in block)
    ):
        raise UnsupportedModelError(
            f"config.json: quantization_config has blocks of {block!r}; they must be two numbers "
            "such as [128, 128]"
        )
    rows, columns = block
    what = f"weights in FP8 with a scale for each {rows} x {columns}"
    return Expanded(method, "fp8", what, 8, block=(rows, columns))


def modelopt(config: Config) -> Shipped | Expanded:
    """Read ModelOpt. In a mixed checkpoint the tensors show which matrices are quantised."""
    algorithm = str(config.get("quant_algo")).upper()
    names = config.get("exclude_modules", config.get("ignore"))
    ignored = tuple(_as_regex(name) for name in names_of(names, "exclude_modules"))
    if algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
        return held_fp8("modelopt", None, ignored, quantises_head=True)
    if algorithm == "FP8_PB_WO":
        return held_fp8("modelopt", _MODELOPT_BLOCK, ignored, quantises_head=True)
    if algorithm not in ("NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"):
        raise unsupported("quant_algo", config.get("quant_algo"))
    others = (expanded_fp8("modelopt", None),)
    expanded = Expanded("modelopt", "nvfp4", "weights in NVFP4 (ModelOpt)", others=others)
    return Shipped(
        "modelopt", "nvfp4", _NVFP4, _NVFP4.group, ignored, quantises_head=True, expanded=expanded
    )


def _as_regex(name: str) -> str:
    """Convert a name with the wildcards `*` and `?` to a regular expression."""
    if name.startswith("re:") or "*" not in name:
        return name
    if "[" in name:
        raise unsupported("exclude", name)
    return "re:" + re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") + r"\Z"


def quark(config: Config) -> Shipped | Expanded:
    """Read Quark: FP8, integers of 8 bits with a scale per row or per matrix, and MXFP4."""
    scheme = config.get("global_quant_config")
    weight = scheme.get("weight") if isinstance(scheme, Mapping) else None
    if isinstance(weight, list) and len(weight) == 1:
        (weight,) = weight
    if not isinstance(weight, Mapping):
        raise unsupported("global_quant_config.weight", weight)
    ignored = tuple(_as_regex(name) for name in names_of(config.get("exclude"), "exclude"))
    kind, scheme_of = weight.get("dtype"), weight.get("qscheme")
    if kind == "fp8_e4m3" and scheme_of in ("per_tensor", "per_channel"):
        return held_fp8("quark", None, ignored, quantises_head=True)
    if kind == "int8" and scheme_of in ("per_tensor", "per_channel") and weight.get("symmetric"):
        expanded = Expanded("quark", "int-quantized", "weights of 8 bits (Quark)", 8)
        format = GroupedFormat("s8", WHOLE_ROW_GROUP)
        return Shipped(
            "quark", "int-quantized", format, None, ignored, quantises_head=True, expanded=expanded
        )
    if kind == "fp4" and scheme_of == "per_group" and weight.get("group_size") == 32:
        expanded = Expanded("quark", "mxfp4-parts", "weights in MXFP4 (Quark)")
        format = GroupedFormat("e2m1", 32)
        return Shipped(
            "quark", "mxfp4-parts", format, 32, ignored, quantises_head=True, expanded=expanded
        )
    raise unsupported("global_quant_config.weight", f"{kind} {scheme_of}")


def bitsandbytes(config: Config) -> Shipped | Expanded:
    """Read bitsandbytes: 4-bit formats are kept, 8-bit ones are expanded."""
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return Expanded("bitsandbytes", "bitsandbytes", "weights of 8 bits (bitsandbytes)", 8)
    kind = config.get("bnb_4bit_quant_type", "fp4")
    check_in("bnb_4bit_quant_type", kind, ("nf4", "fp4"))
    table: CodeTable = "nf4" if kind == "nf4" else "fp4"
    expanded = Expanded("bitsandbytes", "bitsandbytes", f"weights in {kind} (bitsandbytes)")
    format = GroupedFormat(table, _BITSANDBYTES_GROUP)
    ignored = names_of(config.get("llm_int8_skip_modules"), "llm_int8_skip_modules")
    return Shipped("bitsandbytes", "bitsandbytes", format, None, ignored, expanded=expanded)
