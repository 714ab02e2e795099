"""Checkpoints of FP8 and of bitsandbytes, whose codes stand for floats.

Keys and values: transformers' `utils/quantization_config.py`.
"""

from __future__ import annotations

from quire.models.quantised.expanded import Expanded, expanded_format
from quire.models.quantised.shipped import Config, Shipped, fp8_format, names_of
from quire.program.values import CodeTable, GroupedFormat

_BITSANDBYTES_GROUP = 64


def fp8(config: Config) -> Shipped | Expanded | None:
    """Raises UnsupportedModelError for numbers that are not known."""
    expanded = expanded_format(config)
    if expanded is None or (format := fp8_format(expanded.block)) is None:
        return expanded
    ignored = names_of(config.get("modules_to_not_convert"), "modules_to_not_convert")
    return Shipped("fp8", "fp8", format, None, ignored, expanded=expanded)


def bitsandbytes(config: Config) -> Shipped | Expanded | None:
    """Of 4 bits; those of 8 are expanded."""
    expanded = expanded_format(config)
    if config.get("load_in_8bit") or config.get("_load_in_8bit") or expanded is None:
        return expanded
    table: CodeTable = "nf4" if config.get("bnb_4bit_quant_type", "fp4") == "nf4" else "fp4"
    format = GroupedFormat(table, _BITSANDBYTES_GROUP)
    ignored = names_of(config.get("llm_int8_skip_modules"), "llm_int8_skip_modules")
    return Shipped("bitsandbytes", "bitsandbytes", format, None, ignored, expanded=expanded)
