"""`shipped_format`: how a checkpoint holds its matrices, read from `quantization_config`.

AWQ, GPTQ and MXFP4 here; compressed-tensors, FP8 and bitsandbytes in the modules beside. Keys and
values: AutoAWQ's `awq/utils/packing_utils.py`, GPTQModel's `nn_modules/qlinear`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.models.quantised.asked import Noted, as_expanded, noted
from quire.models.quantised.block_formats import GGUF_FORMATS, BlockFormats, block_formats
from quire.models.quantised.compressed import compressed_tensors
from quire.models.quantised.expanded import Expanded, expanded_format
from quire.models.quantised.floats import bitsandbytes, fp8
from quire.models.quantised.shipped import (
    Config,
    Shipped,
    check_is,
    group_of,
    names_of,
    unsupported,
    with_zeros,
)
from quire.program.values import GroupedFormat


def shipped_format(hf_config: Mapping[str, Any]) -> Shipped | BlockFormats | Expanded | None:
    """None: it is not quantised. Raises UnsupportedModelError for what can be neither held nor
    read."""
    config = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise UnsupportedModelError("config.json: quantization_config is no JSON object")
    found = _format_of(config)
    return _as_noted(found, noted(hf_config)) if isinstance(found, Shipped) else found


def as_asked(hf_config: Mapping[str, Any], quantization: str | None) -> Mapping[str, Any]:
    """The configuration of a checkpoint for a value of `quantization`.

    Where it names another format than the checkpoint's, the matrices become plain numbers, if they
    can; of a GGUF file it says the bits of activations. Other configurations stay as they are.
    """
    config = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if quantization is None or not isinstance(config, Mapping):
        return hf_config
    if config.get("quant_method") == "gguf":
        return _gguf_as_asked(hf_config, config, quantization)
    shipped = shipped_format(hf_config)
    is_other = isinstance(shipped, Shipped) and quantization != shipped.method
    return as_expanded(hf_config) if is_other else hf_config


def _gguf_as_asked(
    hf_config: Mapping[str, Any], config: Config, quantization: str
) -> Mapping[str, Any]:
    if quantization not in GGUF_FORMATS:
        return {key: value for key, value in hf_config.items() if key != "quantization_config"}
    bits = GGUF_FORMATS[quantization]
    return {**hf_config, "quantization_config": {**config, "activation_bits": bits}}


def _format_of(config: Config) -> Shipped | BlockFormats | Expanded | None:
    method = config.get("quant_method")
    if method == "gguf":
        return block_formats(config)
    if method == "awq":
        return _awq(config)
    if method == "gptq":
        return _gptq(config)
    if method == "compressed-tensors":
        return compressed_tensors(config)
    if method == "mxfp4":
        return Shipped("mxfp4", "mxfp4", GroupedFormat("e2m1", 32), 32, ())
    if method == "fp8":
        return fp8(config)
    if method == "bitsandbytes":
        return bitsandbytes(config)
    raise unsupported("quant_method", method)


def _as_noted(shipped: Shipped, notes: Noted) -> Shipped | Expanded:
    if shipped.expanded is not None and notes.expanded is not None:
        what = f"{shipped.expanded.what}{notes.expanded}"
        return replace(shipped.expanded, what=what)
    return replace(shipped, plain=notes.plain)


def _awq(config: Config) -> Shipped:
    check_is("bits", config.get("bits", config.get("w_bit")), 4)
    check_is("version", str(config.get("version", "gemm")).lower(), "gemm")
    group = group_of(config.get("group_size", config.get("q_group_size", 128)))
    ignored = config.get("modules_to_not_convert")
    ignored = names_of(ignored, "modules_to_not_convert")
    return Shipped("awq", "awq", with_zeros(group), group, ignored)


def _gptq(config: Config) -> Shipped:
    check_is("bits", config.get("bits"), 4)
    if config.get("dynamic"):
        raise unsupported("dynamic", config["dynamic"])
    version = config.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise unsupported("checkpoint_format", version)
    group = group_of(config.get("group_size", -1))
    has_order = config.get("desc_act") is True and not config.get("static_groups")
    return Shipped(
        "gptq",
        "gptq",
        replace(with_zeros(group), has_order=has_order),
        group,
        names_of(config.get("modules_to_not_convert"), "modules_to_not_convert"),
        zero_offset=1 if version == "gptq" else 0,
        quantises_head=config.get("lm_head") is True,
        expanded=expanded_format(config) if has_order else None,
    )
