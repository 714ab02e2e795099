"""Checkpoints of compressed-tensors: whole numbers of 4 and 8 bits, FP8, and NVFP4.

Keys and values: compressed-tensors' `quantization/quant_args.py` and `config/base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.models.quantised.expanded import expanded_format
from quire.models.quantised.shipped import (
    WHOLE_ROW_GROUP,
    Config,
    Layout,
    Shipped,
    check_is,
    fp8_format,
    group_of,
    names_of,
    unsupported,
    with_zeros,
)
from quire.program.values import GroupedFormat

_METHOD = "compressed-tensors"
_NVFP4_GROUP = 16


def compressed_tensors(config: Config) -> Shipped:
    """Raises UnsupportedModelError for a scheme that is not known."""
    scheme, layout = _scheme(config)
    ignored = names_of(config.get("ignore"), "ignore")
    weights = scheme["weights"]
    if layout in ("float-quantized", "naive-quantized") and weights.get("type") == "float":
        expanded = expanded_format(config)
        format = fp8_format(expanded.block) if expanded is not None else None
        if format is None:
            raise unsupported("block_structure", weights.get("block_structure"))
        return Shipped(
            _METHOD, "fp8", format, None, ignored, quantises_head=True, expanded=expanded
        )
    if layout == "nvfp4-pack-quantized":
        return _nvfp4(weights, ignored)
    return _whole_numbers(config, scheme, str(layout), ignored)


def _scheme(config: Config) -> tuple[Config, object]:
    """The only group of linears, and its layout."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise unsupported("config_groups", groups)
    (scheme,) = groups.values()
    if not isinstance(scheme, Mapping) or not isinstance(scheme.get("weights"), Mapping):
        raise unsupported("config_groups", groups)
    if scheme.get("targets") != ["Linear"]:
        raise unsupported("targets", scheme.get("targets"))
    return scheme, scheme.get("format") or config.get("format")


def _nvfp4(weights: Config, ignored: tuple[str, ...]) -> Shipped:
    """Activations keep 16 bits, whatever `input_activations` says."""
    wanted = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    for key, value in wanted.items():
        check_is(key, weights.get(key), value)
    format = GroupedFormat("e2m1", _NVFP4_GROUP, scale="e4m3")
    return Shipped(_METHOD, "nvfp4-pack", format, _NVFP4_GROUP, ignored, quantises_head=True)


def _whole_numbers(
    config: Config, scheme: Config, layout: str, ignored: tuple[str, ...]
) -> Shipped:
    weights, inputs = scheme["weights"], scheme.get("input_activations")
    known: dict[str, tuple[Layout, int]] = {
        "pack-quantized": ("pack-quantized", 4),
        "int-quantized": ("int-quantized", 8),
    }
    if layout not in known:
        raise unsupported("format", layout)
    stored, bits = known[layout]
    check_is("num_bits", weights.get("num_bits"), bits)
    check_is("type", weights.get("type", "int"), "int")
    order = weights.get("actorder")
    has_order = order == "group" and bits == 4
    if not has_order and order not in (None, "weight", "static", False):
        raise unsupported("actorder", order)
    if weights.get("strategy") not in ("group", "channel"):
        raise unsupported("strategy", weights.get("strategy"))
    group = group_of(weights["group_size"]) if weights["strategy"] == "group" else None
    symmetric = weights.get("symmetric", True)
    if bits == 8:
        check_is("symmetric", symmetric, True)
        format = GroupedFormat("s8", group or WHOLE_ROW_GROUP)
    elif symmetric:
        format = GroupedFormat("s4", group or WHOLE_ROW_GROUP)
    else:
        format = with_zeros(group)
    if inputs is not None:
        _check_inputs(inputs)
        format = replace(format, activation_bits=8)
    format = replace(format, has_order=has_order)
    expanded = expanded_format(config) if has_order else None
    return Shipped(_METHOD, stored, format, group, ignored, quantises_head=True, expanded=expanded)


def _check_inputs(inputs: object) -> None:
    """Activations are rounded with one scale for each token, which is found as they are used."""
    if not isinstance(inputs, Mapping):
        raise unsupported("input_activations", inputs)
    wanted = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    for key, value in wanted.items():
        check_is(f"input_activations.{key}", inputs.get(key), value)
    check_is("input_activations.symmetric", inputs.get("symmetric", True), True)
