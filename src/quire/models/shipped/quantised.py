"""`shipped_format`: how a checkpoint holds its matrices, read from `quantization_config`.

AWQ, GPTQ and compressed-tensors of whole numbers, 4 bits in groups or 8 bits. Keys and values:
AutoAWQ's `awq/utils/packing_utils.py`, GPTQModel's `nn_modules/qlinear`, compressed-tensors'
`quantization/quant_args.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from quire.errors import UnsupportedModelError
from quire.models.shipped.block_formats import BlockFormats, block_formats
from quire.program.values import GroupedFormat

Method = Literal["awq", "gptq", "compressed-tensors"]

_WHOLE_ROW_GROUP = 128
"""Rows with one scale are held in groups of this size, which repeat it."""
_GROUPS = (16, 32, 64, 128)
_WORKS = (
    "AWQ and GPTQ of 4 bits, and compressed-tensors of 4 bits (pack-quantized) or 8 bits "
    "(int-quantized) can be loaded"
)


@dataclass(frozen=True, slots=True)
class Shipped:
    """What all quantised linears of a checkpoint have in common."""

    method: Method
    format: GroupedFormat
    group_size: int | None
    """As the checkpoint has it; None: one scale for each row."""
    ignored: tuple[str, ...]
    """Modules that are not quantised: names, their ends, or after "re:" a regular expression."""
    zero_offset: int = 0
    """What is added to a stored zero: 1 in GPTQ's first format."""
    quantises_head: bool = False

    def format_of(self, name: str) -> GroupedFormat | None:
        """Of the matrix of this name ("...q_proj.weight"); None: it is not quantised."""
        return self.format if self._holds(name) else None

    def _holds(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        if module.endswith(("embed_tokens", "wte", "embed_in")):
            return False
        if module.split(".")[-1] == "lm_head" and not self.quantises_head:
            return False
        return not any(_matches(pattern, module, self.method) for pattern in self.ignored)


def shipped_format(hf_config: Mapping[str, Any]) -> Shipped | BlockFormats | None:
    """None: it is not quantised. Raises UnsupportedModelError for what cannot be held."""
    config = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise UnsupportedModelError("config.json: quantization_config is no JSON object")
    method = config.get("quant_method")
    if method == "gguf":
        return block_formats(config)
    if method == "awq":
        return _awq(config)
    if method == "gptq":
        return _gptq(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise _unsupported("quant_method", method)


def _awq(config: Mapping[str, Any]) -> Shipped:
    _check("bits", config.get("bits", config.get("w_bit")), 4)
    _check("version", str(config.get("version", "gemm")).lower(), "gemm")
    group = _group_of(config.get("group_size", config.get("q_group_size", 128)))
    ignored = config.get("modules_to_not_convert")
    return Shipped("awq", _zeros(group), group, _names(ignored, "modules_to_not_convert"))


def _gptq(config: Mapping[str, Any]) -> Shipped:
    _check("bits", config.get("bits"), 4)
    if config.get("dynamic"):
        raise _unsupported("dynamic", config["dynamic"])
    version = config.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise _unsupported("checkpoint_format", version)
    group = _group_of(config.get("group_size", -1))
    return Shipped(
        "gptq",
        _zeros(group),
        group,
        _names(config.get("modules_to_not_convert"), "modules_to_not_convert"),
        zero_offset=1 if version == "gptq" else 0,
        quantises_head=config.get("lm_head") is True,
    )


def _compressed_tensors(config: Mapping[str, Any]) -> Shipped:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _unsupported("config_groups", groups)
    (scheme,) = groups.values()
    if not isinstance(scheme, Mapping) or not isinstance(scheme.get("weights"), Mapping):
        raise _unsupported("config_groups", groups)
    if scheme.get("targets") != ["Linear"]:
        raise _unsupported("targets", scheme.get("targets"))
    weights, inputs = scheme["weights"], scheme.get("input_activations")
    layout = scheme.get("format") or config.get("format")
    bits = {"pack-quantized": 4, "int-quantized": 8}.get(str(layout))
    if bits is None:
        raise _unsupported("format", layout)
    _check("num_bits", weights.get("num_bits"), bits)
    _check("type", weights.get("type", "int"), "int")
    if weights.get("actorder") not in (None, "weight", "static", False):
        raise _unsupported("actorder", weights["actorder"])
    if weights.get("strategy") not in ("group", "channel"):
        raise _unsupported("strategy", weights.get("strategy"))
    group = _group_of(weights["group_size"]) if weights["strategy"] == "group" else None
    symmetric = weights.get("symmetric", True)
    if bits == 8:
        _check("symmetric", symmetric, True)
        format = GroupedFormat("s8", group or _WHOLE_ROW_GROUP)
    elif symmetric:
        format = GroupedFormat("s4", group or _WHOLE_ROW_GROUP)
    else:
        format = _zeros(group)
    if inputs is not None:
        _check_inputs(inputs)
        format = replace(format, activation_bits=8)
    ignored = _names(config.get("ignore"), "ignore")
    return Shipped("compressed-tensors", format, group, ignored, quantises_head=True)


def _check_inputs(inputs: object) -> None:
    """Activations are rounded with one scale for each token, which is found as they are used."""
    if not isinstance(inputs, Mapping):
        raise _unsupported("input_activations", inputs)
    wanted = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    for key, value in wanted.items():
        _check(f"input_activations.{key}", inputs.get(key), value)
    _check("input_activations.symmetric", inputs.get("symmetric", True), True)


def _zeros(group: int | None) -> GroupedFormat:
    return GroupedFormat("u4", group or _WHOLE_ROW_GROUP, has_zeros=True)


def _group_of(size: object) -> int | None:
    """None for -1: the whole row."""
    if size == -1:
        return None
    if isinstance(size, int) and size in _GROUPS:
        return size
    raise UnsupportedModelError(
        f"quantization_config: group_size {size!r} cannot be held; "
        f"{', '.join(map(str, _GROUPS))} and -1 can"
    )


def _names(names: object, key: str) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise _unsupported(key, names)


def _matches(pattern: str, module: str, method: Method) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error as error:
            raise _unsupported("ignore", pattern) from error
    if method == "compressed-tensors":
        return module == pattern or module.endswith(f".{pattern}")
    return pattern in module  # as transformers does


def _check(key: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise _unsupported(key, value)


def _unsupported(key: str, value: object) -> UnsupportedModelError:
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    return UnsupportedModelError(
        f"config.json: quantization_config with {key} {shown} cannot be loaded; {_WORKS}; "
        "or use the unquantised checkpoint"
    )
