"""The gated short convolution of LFM2: c * conv(b * x), where b, c and x are products."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.mixers.base import Mixer
from quire.program import Builder, Out, Value


@dataclass(frozen=True, slots=True)
class ShortConvMixer(Mixer):
    """Tensors are named after `prefix`: in_proj (b, c, x), conv and out_proj."""

    prefix: str
    width: int
    bias: bool = False

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, size = layer + self.prefix, x.dim
        outs = Out.stacked(f"{prefix}in_proj", [(hint, size) for hint in "bcx"], self.bias)
        b, c, inner = builder.linears(x, outs, hint="in")
        product = builder.multiply(b, inner)
        [mixed] = builder.causal_conv(
            product, f"{prefix}conv", self.width, {"conv": size}, bias=self.bias
        )
        out = builder.multiply(c, mixed)
        return builder.linear(out, f"{prefix}out_proj", size, bias=self.bias, hint="o")
