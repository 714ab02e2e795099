"""Mamba 2: Granite 4, Falcon-H1, Nemotron-H, Bamba, Mamba 2 itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.models.mixers.base import Mixer
from quire.program import Activation, Builder, Out, Tensor, Value


@dataclass(frozen=True, slots=True)
class Mamba2Factors:
    """Factors on the input, on the parts of its product, and on the result (Falcon-H1)."""

    before: float
    z: float
    x: float
    b: float
    c: float
    dt: float
    out: float


@dataclass(frozen=True, slots=True)
class Mamba2Mixer(Mixer):
    """Tensors are named after `prefix`."""

    prefix: str
    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    conv_width: int
    eps: float
    activation: Activation = "silu"
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    dt_limits: tuple[float, float] = (0.0, float("inf"))
    norm: Literal["after", "before", "none"] = "after"
    """Place of the norm of each group: after the gate, before it, or nowhere."""
    factors: Mamba2Factors | None = None

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, width = layer + self.prefix, self.num_heads * self.head_dim
        states = self.num_groups * self.state_dim
        z, xbc, dt = self._products(builder, x, prefix)
        inner, b, c = builder.causal_conv(
            xbc, f"{prefix}conv1d", self.conv_width, {"x": width, "b": states, "c": states},
            bias=self.conv_bias, act=self.activation,
        )  # fmt: skip
        out = builder.ssd(inner, dt, (b, c), self.num_groups, prefix, self.dt_limits)
        out = self._gated(builder, out, z, prefix)
        out = builder.linear(out, f"{prefix}out_proj", x.dim, bias=self.out_bias, hint="o")
        return out if self.factors is None else builder.scale(out, self.factors.out)

    def _products(self, builder: Builder, x: Value, prefix: str) -> tuple[Value, Value, Value]:
        """Return z, the input of the convolution, and dt."""
        width, states = self.num_heads * self.head_dim, self.num_groups * self.state_dim
        factors = self.factors
        if factors is None:
            sizes = {"z": width, "xbc": width + 2 * states, "dt": self.num_heads}
            outs = Out.stacked(f"{prefix}in_proj", [*sizes.items()], self.in_bias)
            z, xbc, dt = builder.linears(x, outs, hint="in")
            return z, xbc, dt
        sizes = {"z": width, "x": width, "b": states, "c": states, "dt": self.num_heads}
        outs = Out.stacked(f"{prefix}in_proj", [*sizes.items()], self.in_bias)
        # Not after the product, which may have a bias.
        x = x if factors.before == 1.0 else builder.scale(x, factors.before)
        products = builder.linears(x, outs, hint="in")
        wanted = (factors.z, factors.x, factors.b, factors.c, factors.dt)
        z, inner, b, c, dt = (
            value if factor == 1.0 else builder.scale(value, factor)
            for value, factor in zip(products, wanted, strict=True)
        )
        xb = builder.join_heads(inner, b, 1, "xb")
        return z, builder.join_heads(xb, c, 1, "xbc"), dt

    def _gated(self, builder: Builder, out: Value, z: Value, prefix: str) -> Value:
        def norm(value: Value) -> Value:
            name = f"{prefix}norm.weight"
            if self.num_groups == 1:
                return builder.rms_norm(value, name, self.eps, "ssd_norm")
            weight = Tensor(name, (value.dim,))
            return builder.head_norm(
                value, [weight], self.eps, value.dim // self.num_groups, "ssd_norm"
            )

        if self.norm == "before":
            out = norm(out)
        gated = builder.glu(z, out, "silu")
        return norm(gated) if self.norm == "after" else gated
