"""HQQ and torchao, read as plain numbers because no kernel format supports their zeros.

Keys and values: transformers' `utils/quantization_config.py`, `quantizers/quantizer_torchao.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.models.quantised.expanded import Expanded
from quire.models.quantised.shipped_linears import Config, unsupported


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
