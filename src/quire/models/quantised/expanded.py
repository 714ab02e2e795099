"""`Expanded`: a quantised checkpoint whose weights are read as plain numbers, and not held so.

FP8 (of one scale for a tensor, a row or a block), bitsandbytes of 4 and 8 bits, and whole numbers
whose columns are grouped in another order than they lie in (act-order). Keys and values:
transformers' `utils/quantization_config.py`, compressed-tensors' `quantization/quant_args.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import UnsupportedModelError

Layout = Literal["fp8", "bitsandbytes", "gptq", "pack-quantized"]


@dataclass(frozen=True, slots=True)
class Expanded:
    """How the weights are stored that become plain numbers."""

    method: str
    """`quant_method` of the checkpoint."""
    layout: Layout
    what: str
    """In words, for people."""
    block: tuple[int, int] | None = None
    """Of fp8: rows and columns that have one scale, where scales are of blocks."""
    zero_offset: int = 0
    """Of gptq: what is added to a stored zero."""


def expanded_format(config: Mapping[str, Any]) -> Expanded | None:
    """Of a `quantization_config`; None where it is no such checkpoint. Raises
    UnsupportedModelError for one whose numbers are not known."""
    method = config.get("quant_method")
    if method == "fp8":
        return _fp8(config)
    if method == "bitsandbytes":
        return _bitsandbytes(config)
    if method == "gptq" and config.get("desc_act") is True and not config.get("static_groups"):
        return _gptq(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    return None


def _fp8(config: Mapping[str, Any]) -> Expanded:
    _check("fmt", config.get("fmt", "e4m3"), ("e4m3", "float8_e4m3fn", "e4m3fn"))
    return _floats("fp8", config.get("weight_block_size"))


def _bitsandbytes(config: Mapping[str, Any]) -> Expanded:
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return Expanded("bitsandbytes", "bitsandbytes", "weights of 8 bits (bitsandbytes)")
    kind = config.get("bnb_4bit_quant_type", "fp4")
    _check("bnb_4bit_quant_type", kind, ("nf4", "fp4"))
    return Expanded("bitsandbytes", "bitsandbytes", f"weights in {kind} (bitsandbytes)")


def _gptq(config: Mapping[str, Any]) -> Expanded:
    _check("bits", config.get("bits"), (4,))
    version = config.get("checkpoint_format", "gptq")
    _check("checkpoint_format", version, ("gptq", "gptq_v2"))
    what = "weights of 4 bits in groups of an order of their own (desc_act)"
    return Expanded("gptq", "gptq", what, zero_offset=1 if version == "gptq" else 0)


def _compressed_tensors(config: Mapping[str, Any]) -> Expanded | None:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    (scheme,) = groups.values()
    weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    layout = scheme.get("format") or config.get("format")
    if layout in ("float-quantized", "naive-quantized") and weights.get("type") == "float":
        _check("num_bits", weights.get("num_bits"), (8,))
        _check("strategy", weights.get("strategy"), ("tensor", "channel", "block"))
        is_block = weights["strategy"] == "block"
        return _floats("compressed-tensors", weights.get("block_structure") if is_block else None)
    if layout == "pack-quantized" and weights.get("actorder") == "group":
        _check("num_bits", weights.get("num_bits"), (4,))
        what = "weights of 4 bits in groups of an order of their own (actorder)"
        return Expanded("compressed-tensors", "pack-quantized", what)
    return None


def _floats(method: str, block: object) -> Expanded:
    if block is None:
        return Expanded(method, "fp8", "weights in FP8")
    if (
        not isinstance(block, list | tuple)
        or len(block) != 2
        or not all(isinstance(size, int) and size > 0 for size in block)
    ):
        raise UnsupportedModelError(
            f"config.json: quantization_config has blocks of {block!r}; two numbers are expected, "
            "such as [128, 128]"
        )
    rows, columns = block
    return Expanded(
        method, "fp8", f"weights in FP8 with a scale for each {rows} x {columns}", (rows, columns)
    )


def _check(key: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise UnsupportedModelError(
            f"config.json: quantization_config with {key} {repr(value)[:100]} cannot be loaded; "
            f"known: {', '.join(map(str, known))}; or use the unquantised checkpoint"
        )
