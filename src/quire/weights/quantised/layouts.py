"""The layouts of quantised checkpoints, by their names in `models.quantised`."""

from __future__ import annotations

from quire.weights.quantised.float_layouts import (
    BitsAndBytes,
    Fp8,
    Mxfp4,
    Nvfp4,
    PackedMxfp4,
    PackedNvfp4,
)
from quire.weights.quantised.hqq_torchao import Hqq, TorchAo
from quire.weights.quantised.integer_layouts import Awq, Gptq, IntQuantized, PackQuantized
from quire.weights.quantised.layout import Layout, Parts

LAYOUTS: dict[str, Layout] = {
    "awq": Awq(),
    "gptq": Gptq(),
    "pack-quantized": PackQuantized(),
    "int-quantized": IntQuantized(),
    "fp8": Fp8(),
    "nvfp4": Nvfp4(),
    "nvfp4-pack": PackedNvfp4(),
    "mxfp4-parts": Mxfp4(),
    "mxfp4-pack": PackedMxfp4(),
    "bitsandbytes": BitsAndBytes(),
    "hqq": Hqq(),
    "torchao": TorchAo(),
}

__all__ = ["LAYOUTS", "Layout", "Parts"]
