"""`shipped_format`: the format of a checkpoint's matrices, read from its quantisation section.

`_READERS` has the reader of each `quant_method`. AWQ, GPTQ, auto-round, HQQ and torchao are read
here, others in neighbouring modules; HQQ and torchao as plain numbers, because no kernel format
supports their zeros. Keys and values: AutoAWQ's `awq/utils/packing_utils.py`, GPTQModel's
`quantization/config.py`, vLLM's `quantization/auto_round.py`, transformers'
`utils/quantization_config.py` and `quantizers/quantizer_torchao.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from quire.models.quantised.block_formats import GGUF_FORMATS, BlockFormats, block_formats
from quire.models.quantised.compressed_tensors import compressed_tensors
from quire.models.quantised.expanded import Expanded
from quire.models.quantised.float_formats import bitsandbytes, fbgemm_fp8, fp8, modelopt, quark
from quire.models.quantised.in_config import Noted, as_expanded, noted, quantisation_of
from quire.models.quantised.shipped_linears import (
    WHOLE_ROW_GROUP,
    Config,
    Shipped,
    check_is,
    group_of,
    is_held_group,
    names_of,
    ordered,
    unsupported,
    with_zeros,
)
from quire.program.values import GroupedFormat


def hqq(config: Config) -> Expanded:
    """Read HQQ. In current files, the tensors show each matrix's bits and groups."""
    params = config.get("quant_config")
    weights = params.get("weight_quant_params") if isinstance(params, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    bits, group, axis = weights.get("nbits", 4), weights.get("group_size"), weights.get("axis", 1)
    for key, value in (("nbits", bits), ("group_size", group), ("axis", axis)):
        if value is not None and not isinstance(value, int):
            raise unsupported(key, value)
    return Expanded("hqq", "hqq", f"weights of {bits} bits (HQQ)", bits, group=group, axis=axis)


def torchao(config: Config) -> Expanded:
    """Read torchao: int4 in plain packing, int8 and FP8, as `torchao` writes them to
    safetensors."""
    name, data = _kind(config.get("quant_type"))
    packing = data.get("int4_packing_format", "plain")
    if isinstance(packing, Mapping):
        packing = packing.get("_data", packing)
    if name.startswith("Int4WeightOnly") and str(packing).lower() != "plain":
        raise unsupported("int4_packing_format", packing)
    for begin, bits in (("Int4WeightOnly", 4), ("Int8", 8), ("Float8", 8)):
        if name.startswith(begin) and "Int4Weight" not in name[len(begin) :]:
            what = f"weights of {bits} bits (torchao {name})"
            return Expanded("torchao", "torchao", what, bits, is_float=begin == "Float8")
    raise unsupported("quant_type", config.get("quant_type"))


def _kind(quant_type: object) -> tuple[str, Mapping[str, Any]]:
    """Return the name of torchao's configuration and its values."""
    if isinstance(quant_type, Mapping) and isinstance(quant_type.get("default"), Mapping):
        quant_type = quant_type["default"]
    if not isinstance(quant_type, Mapping) or not isinstance(quant_type.get("_type"), str):
        raise unsupported("quant_type", quant_type)
    data = quant_type.get("_data")
    return quant_type["_type"], data if isinstance(data, Mapping) else {}


Found = Shipped | BlockFormats | Expanded


def shipped_format(hf_config: Mapping[str, Any]) -> Found | None:
    """Return the format; None if the checkpoint is not quantised. Raises UnsupportedModelError for
    a format that can be neither kept nor expanded."""
    config = quantisation_of(hf_config)
    if config is None:
        return None
    method = config.get("quant_method") or _method_of(config)
    reader = _READERS.get(str(method))
    if reader is None:
        raise unsupported("quant_method", method)
    found = reader(config)
    return _as_noted(found, noted(hf_config)) if isinstance(found, Shipped) else found


def as_asked(hf_config: Mapping[str, Any], quantization: str | None) -> Mapping[str, Any]:
    """Adapt a checkpoint's configuration to a value of `quantization`.

    If it names another format than the checkpoint's, the matrices are expanded, if possible. For a
    GGUF file it sets the bits of activations. Other configurations stay as they are.
    """
    config = quantisation_of(hf_config)
    if quantization is None or config is None:
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


def _method_of(config: Config) -> str | None:
    """Return the method of a section without `quant_method`: ModelOpt's has an algorithm."""
    return "modelopt" if "quant_algo" in config else None


def _as_noted(shipped: Shipped, notes: Noted) -> Shipped | Expanded:
    if shipped.expanded is not None and notes.expanded is not None:
        what = f"{shipped.expanded.what}{notes.expanded}"
        return replace(shipped.expanded, what=what)
    shipped = replace(shipped, plain=notes.plain)
    return ordered(shipped) if notes.is_ordered else shipped


def _mxfp4(config: Config) -> Shipped:
    """Return the format of gpt-oss's experts."""
    del config
    return Shipped("mxfp4", "mxfp4", GroupedFormat("e2m1", 32), 32, ())


def _awq(config: Config) -> Shipped | Expanded:
    check_is("bits", config.get("bits", config.get("w_bit")), 4)
    check_is("version", str(config.get("version", "gemm")).lower(), "gemm")
    group = group_of(config.get("group_size", config.get("q_group_size", 128)))
    ignored = names_of(config.get("modules_to_not_convert"), "modules_to_not_convert")
    expanded = Expanded("awq", "awq", "weights of 4 bits (AWQ)")
    if not is_held_group(group):
        return expanded
    return Shipped("awq", "awq", with_zeros(group), group, ignored, expanded=expanded)


def _gptq(config: Config) -> Shipped | Expanded:
    """Read GPTQ. 4-bit codes are kept, and 8-bit codes with zeros in the middle; others are
    expanded. Rules of `dynamic` that change a module's bits are visible in its tensors."""
    bits = config.get("bits")
    if bits not in (2, 3, 4, 8):
        raise unsupported("bits", bits)
    version = config.get("checkpoint_format", config.get("format", "gptq"))
    if version not in ("gptq", "gptq_v2"):
        raise unsupported("checkpoint_format", version)
    group = group_of(config.get("group_size", -1))
    offset = 1 if version == "gptq" else 0
    has_order = config.get("desc_act") is True and not config.get("static_groups")
    order = " in groups of an order of their own (desc_act)" if has_order else ""
    what = f"weights of {bits} bits{order}" if order else f"weights of {bits} bits (GPTQ)"
    expanded = Expanded("gptq", "gptq", what, bits, zero_offset=offset)
    if bits in (2, 3) or not is_held_group(group) or (bits == 8 and config.get("sym") is False):
        return expanded
    plain_8 = GroupedFormat("s8", group or WHOLE_ROW_GROUP)
    shipped = Shipped(
        "gptq",
        "gptq",
        with_zeros(group) if bits == 4 else plain_8,
        group,
        (*names_of(config.get("modules_to_not_convert"), "modules_to_not_convert"),
         *_skipped(config.get("dynamic"))),
        zero_offset=offset,
        quantises_head=config.get("lm_head") is True,
        expanded=expanded,
    )  # fmt: skip
    return ordered(shipped) if has_order else shipped


def _skipped(dynamic: object) -> tuple[str, ...]:
    """Return the modules that rules of `dynamic` exclude: keys that begin with "-:"."""
    if not dynamic:
        return ()
    if not isinstance(dynamic, Mapping):
        raise unsupported("dynamic", dynamic)
    return tuple(f"re:{key[2:]}" for key in dynamic if str(key).startswith("-:"))


def _auto_round(config: Config) -> Shipped | Expanded:
    """Read auto-round, whose tensors are those of GPTQ or AWQ. `extra_config` is visible in the
    tensors."""
    check_is("data_type", config.get("data_type", "int"), "int")
    packing = str(config.get("packing_format") or config.get("backend") or "auto_round:auto_gptq")
    if "awq" in packing:
        found = _awq({**config, "version": "gemm"})
    elif "gptq" in packing or "exllama" in packing:
        has_head = "lm_head" in (config.get("extra_config") or {})
        found = _gptq({**config, "checkpoint_format": "gptq", "lm_head": has_head})
    else:
        raise unsupported("packing_format", packing)
    return replace(found, method=str(config["quant_method"]))


_READERS: dict[str, Callable[[Config], Found]] = {
    "gguf": block_formats,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "inc": _auto_round,
    "compressed-tensors": compressed_tensors,
    "mxfp4": _mxfp4,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "quark": quark,
    "bitsandbytes": bitsandbytes,
    "hqq": hqq,
    "torchao": torchao,
}
"""Readers by `quant_method`."""
