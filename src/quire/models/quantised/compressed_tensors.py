"""Reads checkpoints of compressed-tensors: integers of 4 and 8 bits, FP8, NVFP4 and MXFP4.

Keys and values: compressed-tensors' `quantization/quant_args.py` and `config/base.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.models.quantised.expanded import Expanded, Layout
from quire.models.quantised.float_formats import held_fp8
from quire.models.quantised.shipped_linears import (
    WHOLE_ROW_GROUP,
    Config,
    Shipped,
    check_in,
    check_is,
    group_of,
    is_held_group,
    names_of,
    ordered,
    unsupported,
    with_zeros,
)
from quire.program.values import GroupedFormat

_METHOD = "compressed-tensors"


def compressed_tensors(config: Config) -> Shipped | Expanded:
    """Read the formats. With several groups of modules, the first group with a supported format
    gives the format, and matrices of other formats are expanded. Raises UnsupportedModelError for
    an unknown scheme."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise unsupported("config_groups", groups)
    ignored = names_of(config.get("ignore"), "ignore")
    found = [_group(config, group, ignored) for group in groups.values()]
    held = next((one for one in found if isinstance(one, Shipped)), None)
    if held is None:
        first, *rest = (one for one in found if isinstance(one, Expanded))
        return _with_others(first, rest)
    if held.expanded is None:
        return held
    alike = [one for one in found if isinstance(one, Shipped) and one.format == held.format]
    others = [_expanded(one) for one in found]
    targets = tuple(target for one in alike for target in one.targets)
    return replace(held, expanded=_with_others(held.expanded, others), targets=targets)


def _expanded(found: Shipped | Expanded) -> Expanded:
    how = found.expanded if isinstance(found, Shipped) else found
    if how is None:
        raise unsupported("config_groups", found)
    return how


def _with_others(first: Expanded, others: list[Expanded]) -> Expanded:
    """Return one entry per layout: only the layout can be derived from the tensors."""
    by_layout = {one.layout: one for one in reversed(others) if one.layout != first.layout}
    return replace(first, others=tuple(by_layout.values()))


def _group(config: Config, scheme: object, ignored: tuple[str, ...]) -> Shipped | Expanded:
    """Read one group of modules with the same format."""
    if not isinstance(scheme, Mapping) or not isinstance(scheme.get("weights"), Mapping):
        raise unsupported("config_groups", scheme)
    targets = names_of(scheme.get("targets"), "targets") or ("Linear",)
    layout = str(scheme.get("format") or config.get("format"))
    found = _of_layout(layout, scheme, ignored)
    return replace(found, targets=targets) if isinstance(found, Shipped) else found


def _of_layout(layout: str, scheme: Config, ignored: tuple[str, ...]) -> Shipped | Expanded:
    weights = scheme["weights"]
    if layout in ("float-quantized", "naive-quantized") and weights.get("type") == "float":
        check_is("num_bits", weights.get("num_bits"), 8)
        check_in("strategy", weights.get("strategy"), ("tensor", "channel", "block"))
        block = weights.get("block_structure") if weights["strategy"] == "block" else None
        return held_fp8(_METHOD, block, ignored, quantises_head=True)
    if layout in _FP4:
        return _fp4(layout, weights, ignored)
    if layout in ("pack-quantized", "int-quantized", "naive-quantized"):
        return _whole_numbers(layout, weights, scheme.get("input_activations"), ignored)
    raise unsupported("format", layout)


_FP4: dict[str, tuple[Expanded, GroupedFormat, dict[str, Any]]] = {
    "nvfp4-pack-quantized": (
        Expanded(_METHOD, "nvfp4-pack", "weights in NVFP4"),
        GroupedFormat("e2m1", 16, scale="e4m3"),
        {"strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4-pack-quantized": (
        Expanded(_METHOD, "mxfp4-pack", "weights in MXFP4"),
        GroupedFormat("e2m1", 32),
        {"strategy": "group", "group_size": 32},
    ),
}


def _fp4(layout: str, weights: Config, ignored: tuple[str, ...]) -> Shipped:
    """Read an FP4 format. Activations keep 16 bits; `input_activations` is ignored."""
    expanded, format, wanted = _FP4[layout]
    for key, value in {"num_bits": 4, "type": "float", **wanted}.items():
        check_is(key, weights.get(key), value)
    return Shipped(
        _METHOD,
        expanded.layout,
        format,
        format.group,
        ignored,
        quantises_head=True,
        expanded=expanded,
    )


def _whole_numbers(
    layout: str, weights: Config, inputs: object, ignored: tuple[str, ...]
) -> Shipped | Expanded:
    bits = weights.get("num_bits")
    check_in("num_bits", bits, (4, 8) if layout == "pack-quantized" else (8,))
    check_is("type", weights.get("type", "int"), "int")
    check_in("actorder", weights.get("actorder"), (None, "weight", "static", "group", False))
    check_in("strategy", weights.get("strategy"), ("group", "channel", "tensor"))
    has_order = weights.get("actorder") == "group" and layout == "pack-quantized"
    group = group_of(weights.get("group_size")) if weights["strategy"] == "group" else None
    symmetric = weights.get("symmetric", True)
    stored: Layout = "pack-quantized" if layout == "pack-quantized" else "int-quantized"
    order = " in groups of an order of their own (actorder)" if has_order else ""
    expanded = Expanded(_METHOD, stored, f"weights of {bits} bits{order}", int(bits or 0))
    if stored == "int-quantized":
        check_is("symmetric", symmetric, True)
    if not is_held_group(group) or (bits == 8 and not symmetric):
        return expanded
    format = with_zeros(group)
    if symmetric:
        format = GroupedFormat("s8" if bits == 8 else "s4", group or WHOLE_ROW_GROUP)
    if inputs is not None:
        _check_inputs(inputs)
        format = replace(format, activation_bits=8)
    shipped = Shipped(
        _METHOD, stored, format, group, ignored, quantises_head=True, expanded=expanded
    )
    return ordered(shipped) if has_order else shipped


def _check_inputs(inputs: object) -> None:
    """Check that activations are rounded with one dynamic scale per token."""
    if not isinstance(inputs, Mapping):
        raise unsupported("input_activations", inputs)
    wanted = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    for key, value in wanted.items():
        check_is(f"input_activations.{key}", inputs.get(key), value)
    check_is("input_activations.symmetric", inputs.get("symmetric", True), True)
