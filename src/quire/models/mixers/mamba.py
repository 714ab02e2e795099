"""Mamba 1: Mamba, Falcon-Mamba, Jamba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.mixers.base import Mixer
from quire.program import Activation, Builder, Out, Value


@dataclass(frozen=True, slots=True)
class MambaMixer(Mixer):
    """Tensors are named after `prefix`."""

    prefix: str
    width: int
    """Number of channels."""
    state_dim: int
    dt_rank: int
    conv_width: int
    activation: Activation = "silu"
    conv_bias: bool = True
    bias: bool = False
    norms: Literal["none", "weighted", "plain"] = "none"
    """Norms of dt, b and c: with weights (Jamba) or without (Falcon-Mamba)."""
    eps: float = 1e-6

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, width = layer + self.prefix, self.width
        outs = Out.stacked(f"{prefix}in_proj", [("x", width), ("z", width)], self.bias)
        inner, z = builder.linears(x, outs, hint="in")
        [inner] = builder.causal_conv(
            inner, f"{prefix}conv1d", self.conv_width, {"x": width}, bias=self.conv_bias,
            act=self.activation,
        )  # fmt: skip
        dt, b, c = self._step(builder, inner, prefix)
        dt = builder.linear(dt, f"{prefix}dt_proj", width, bias=False, hint="dt_wide")
        out = builder.mamba(inner, dt, (b, c), prefix)
        gated = builder.glu(z, out, self.activation)
        return builder.linear(gated, f"{prefix}out_proj", x.dim, bias=self.bias, hint="o")

    def _step(self, builder: Builder, x: Value, prefix: str) -> tuple[Value, Value, Value]:
        """Return dt, b and c."""
        sizes = {"dt": self.dt_rank, "b": self.state_dim, "c": self.state_dim}
        outs = Out.stacked(f"{prefix}x_proj", [*sizes.items()])
        values = builder.linears(x, outs, hint="step")
        if self.norms != "none":
            values = tuple(
                builder.rms_norm(
                    value,
                    f"{prefix}{hint}_layernorm.weight" if self.norms == "weighted" else None,
                    self.eps,
                    f"{hint}_norm",
                )
                for hint, value in zip(sizes, values, strict=True)
            )
        dt, b, c = values
        return dt, b, c
