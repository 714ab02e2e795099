"""Kimi's delta attention: the gated delta rule with a decay for each channel of the keys."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.mixers.base import Mixer
from quire.program import Activation, Builder, Out, Tensor, Value


@dataclass(frozen=True, slots=True)
class KimiDeltaMixer(Mixer):
    """q, k and v have heads of one width. The decay and the gate of the output are products of
    two small matrices each."""

    num_heads: int
    head_dim: int
    conv_width: int
    eps: float
    activation: Activation
    prefix: str = "self_attn."

    def build(self, builder: Builder, x: Value, layer: str) -> Value:
        prefix, width = layer + self.prefix, self.num_heads * self.head_dim
        outs = [Out(hint, f"{prefix}{hint}_proj", width) for hint in "qkv"]
        q, k, v = builder.linears(x, outs, hint="qkv")
        qkv = builder.join_heads(builder.join_heads(q, k, 1, "qk"), v, 1, "qkv")
        mixed = builder.causal_conv(
            qkv, [f"{prefix}{hint}_conv1d" for hint in "qkv"], self.conv_width,
            {"q": width, "k": width, "v": width}, bias=False, act=self.activation,
        )  # fmt: skip
        a = self._small_product(builder, x, prefix, "f")
        b = builder.linear(x, f"{prefix}b_proj", self.num_heads, bias=False, hint="b", exact=True)
        out = builder.gated_delta(
            mixed, a, b, num_heads=self.num_heads, num_key_heads=self.num_heads,
            a_log=Tensor(f"{prefix}A_log", (1, 1, self.num_heads, 1)),
            dt_bias=Tensor(f"{prefix}dt_bias", (width,)),
        )  # fmt: skip
        norm = Tensor(f"{prefix}o_norm.weight", (self.head_dim,))
        normed = builder.head_norm(out, [norm], self.eps, self.head_dim, "delta_norm")
        gated = builder.sigmoid_gate(normed, self._small_product(builder, x, prefix, "g"))
        return builder.linear(gated, f"{prefix}o_proj", x.dim, bias=False, hint="o")

    def _small_product(self, builder: Builder, x: Value, prefix: str, name: str) -> Value:
        small = builder.linear(
            x, f"{prefix}{name}_a_proj", self.head_dim, bias=False, hint=f"{name}_a"
        )
        width = self.num_heads * self.head_dim
        return builder.linear(small, f"{prefix}{name}_b_proj", width, bias=False, hint=f"{name}_b")
